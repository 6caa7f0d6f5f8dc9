"""hvdrun's end of the connection to one agent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hvdlite.errors import CannotStart

from ..agent.processes import die_with_parent, signal_group
from ..agent.tunnel import Tunnel
from ..hosts import Host
from ..spawners import SshOptions, spawner_of
from ..stream.frames import (
    GREETING,
    FrameError,
    FrameReader,
    Kind,
    pack,
    pack_message,
    pack_output,
    unpack_message,
    unpack_output,
)
from ..stream.hello import Hello
from ..stream.loop import Loop
from ..stream.outbox import Outbox

_READ_BYTES: Final = 256 << 10
_MAX_PRELUDE_BYTES: Final = 64 << 10  # what login scripts may write before the agent's greeting
_MAX_SAID: Final = 50  # lines of stderr that are kept
_MAX_LINE_BYTES: Final = 64 << 10  # of stderr; what is longer is cut
_LAST_WRITE_S: Final = 0.5
_END_S: Final = 2.0
_DEATH_S: Final = 1.0
_GONE: Final = "the agent is gone"


@dataclass(slots=True)
class Question:
    """A question to an agent; ``is_done`` once there is an ``answer`` or an ``error``."""

    is_done: bool = False
    answer: Any = None
    error: str = ""

    def finish(self, answer: Any, error: str) -> None:
        self.is_done, self.answer, self.error = True, answer, error


@dataclass(slots=True)
class Listener:
    """Receives what agents send: frames that links do not handle themselves, lines of stderr, and the end."""

    frame: Callable[[AgentLink, Kind, bytes], None]
    line: Callable[[AgentLink, str], None]
    end: Callable[[AgentLink], None]


@dataclass(slots=True)
class Clock:
    """The offset of an agent's monotonic clock, from the fastest exchange of a lease."""

    offset_s: float
    uncertain_s: float  # half of what that exchange took

    def learn(self, sent: float, theirs: float, received: float) -> None:
        """Records that their clock showed ``theirs`` between two times of ours."""
        if (received - sent) / 2 < self.uncertain_s:
            self.offset_s, self.uncertain_s = theirs - (sent + received) / 2, (received - sent) / 2

    def translate(self, theirs: float) -> float:
        """Converts a time of theirs to ours, within ``uncertain_s``."""
        return theirs - self.offset_s


class AgentLink:
    """Starts the agent of ``host`` and talks to it in ``loop``. Raises CannotStart if its process cannot start."""

    def __init__(self, host: Host, options: SshOptions, loop: Loop, listener: Listener) -> None:
        self.host = host.name
        self.hello: Hello | None = None
        self.pids: dict[int, int] = {}  # of the ranks that run
        self.started = self.heard = time.monotonic()
        self.is_over = False  # nothing can come any more
        self.services: Mapping[str, str] = {}  # what its workers may connect to: the abstract socket of each service
        self._spec, self._loop, self._listener = host, loop, listener
        self._spawner = spawner_of(host)
        self.clock = Clock(0.0, float("inf") if self._spawner.is_remote else 0.0)
        self.problem = ""  # what was wrong with what the agent sent
        self._said: deque[str] = deque(maxlen=_MAX_SAID)
        self._said_tail = b""
        self._prelude: bytes | None = b""  # what came before the greeting; None after it
        self._frames = FrameReader()
        self._questions: dict[int, Question] = {}
        self._asked = 0
        self._spawn(self._spawner.command(host, options))
        self._tunnel = Tunnel(loop, self._write)
        loop.watch(self._stdout.fileno(), self._receive)
        loop.watch(self._stderr.fileno(), self._read_stderr)

    def _spawn(self, command: list[str]) -> None:
        try:
            # A session of its own keeps the terminal's signals from the agent: hvdrun decides what they mean.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
            )
        except OSError as error:
            what = f": {error.filename}" if error.filename else ""
            advice = "; raise the limit with ulimit -n" if error.errno == errno.EMFILE else ""
            raise CannotStart(self.host, f"{error.strerror}{what}{advice}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._stdin, self._stdout, self._stderr = process, process.stdin, process.stdout, process.stderr
        os.set_blocking(self._stderr.fileno(), False)
        self._outbox = Outbox(self._loop, self._stdin.fileno(), f"the agent of {self.host}", self._hold)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_remote(self) -> bool:
        return self._spawner.is_remote

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that were not written yet."""
        return self._outbox.waiting_bytes

    def ask(self, what: str, **fields: Any) -> Question:
        """Asks the agent a question of the table in `answers`; turns of the loop bring the answer."""
        question = Question()
        if self.is_over:
            question.finish(None, _GONE)
            return question
        self._asked += 1
        self._questions[self._asked] = question
        self.send(Kind.ASK, id=self._asked, what=what, **fields)
        return question

    def send(self, kind: Kind, **fields: Any) -> None:
        """Sends a message. If the agent is gone, the message is dropped and the listener learns of the end."""
        self._write(pack_message(kind, **fields))

    def send_bytes(self, kind: Kind, data: bytes) -> None:
        """Sends bytes in the same way."""
        self._write(pack(kind, data))

    def send_input(self, rank: int, data: bytes) -> None:
        """Sends input for the stdin of ``rank`` in the same way."""
        self._write(pack_output(Kind.STDIN, rank, data))

    def explain(self) -> str:
        """The reason why the agent is gone, for the user. Ends its process if it still runs."""
        self._end_process(_END_S)
        if self.problem:
            return self.problem
        self._read_stderr()
        return self._spawner.explain(self._spec, tuple(self._said), self._process.returncode)

    def destroy(self) -> None:
        """Has the agent's guard kill it and everything below, or cuts its connection, which makes it end by itself."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)
        if not self.is_remote:
            for pid in self.pids.values():
                signal_group(pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Ends the stream to the agent, which then exits with everything it started."""
        if not self._stdin.closed:
            self._outbox.drain(_LAST_WRITE_S)
            self._outbox.close()
            self._stdin.close()

    def close(self, timeout_s: float) -> None:
        """Waits for the end of the agent and frees what the link holds; kills the agent if it takes longer."""
        self._tunnel.shut()
        self._end_process(timeout_s)
        for stream in (self._stdout, self._stderr):
            self._loop.unwatch(stream.fileno())
            stream.close()

    # ---- what comes

    def _receive(self) -> None:
        data = os.read(self._stdout.fileno(), _READ_BYTES)
        self.heard = time.monotonic()
        if not data:
            self._finish("")
            return
        try:
            for kind, payload in self._frames.feed(self._after_greeting(data)):
                self._take(kind, payload)
        except (FrameError, KeyError, OverflowError, TypeError, ValueError) as error:
            self._finish(f"its agent sent an invalid message: {error}")

    def _after_greeting(self, data: bytes) -> bytes:
        if self._prelude is None:
            return data
        self._prelude, found, rest = (self._prelude + data).partition(GREETING)
        if found:
            self._prelude = None
            return rest
        if len(self._prelude) > _MAX_PRELUDE_BYTES:
            raise FrameError("no greeting")
        return b""

    def _take(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.DATA:
            self._tunnel.deliver(*unpack_output(payload))
        elif kind is Kind.OPEN:
            message = unpack_message(payload)
            self._tunnel.open(int(message["channel"]), self.services.get(message["service"]))
        elif kind is Kind.CLOSE:
            self._tunnel.close(int(unpack_message(payload)["channel"]))
        elif kind is Kind.LEASE:
            message = unpack_message(payload)
            self.clock.learn(float(message["sent"]), float(message["time"]), self.heard)
        elif kind is Kind.HELLO:
            self.hello = Hello.parse(unpack_message(payload))
        elif kind is Kind.ANSWER:
            message = unpack_message(payload)
            if question := self._questions.pop(message["id"], None):
                question.finish(message.get("answer"), str(message.get("error", "")))
        else:
            self._listener.frame(self, kind, payload)

    def _read_stderr(self) -> None:
        try:
            data = os.read(self._stderr.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._said_tail = (self._said_tail + data).split(b"\n")
        if not data:
            self._loop.unwatch(self._stderr.fileno())
        if self._said_tail and (not data or len(self._said_tail) > _MAX_LINE_BYTES):
            lines, self._said_tail = [*lines, self._said_tail], b""
        for line in lines:
            text = line.decode(errors="backslashreplace").rstrip("\r")
            self._said.append(text)
            self._listener.line(self, text)

    def _finish(self, problem: str) -> None:
        self.problem, self.is_over = problem, True
        self._loop.unwatch(self._stdout.fileno())
        self._tunnel.shut()
        for question in self._questions.values():
            question.finish(None, _GONE)
        self._listener.end(self)

    # ---- what goes

    def _write(self, frame: bytes) -> None:
        if not self._stdin.closed:
            self._outbox.send(frame)

    def _hold(self, is_held: bool) -> None:
        """Reads the workers' connections only while the outbox has room."""
        self._tunnel.hold(is_held)

    def _end_process(self, timeout_s: float) -> None:
        self.hang_up()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.destroy()
            try:
                self._process.wait(_DEATH_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
