"""hvdrun's end of the connection to one agent."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..agent.processes import signal_group
from ..agent.tunnel import Tunnel
from ..hosts import Host
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
from .fields import count, field, figure, printable
from .ways import Way

_MAX_PRELUDE_BYTES: Final = 64 << 10  # what login scripts may write before the agent's greeting
_END_S: Final = 2.0
_DEATH_S: Final = 1.0
_MOST_CHARACTERS: Final = 10_000  # of an error, which may have a path of 4096 bytes
_GONE: Final = "its agent has ended"


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
    """Receives what agents send: frames that links do not handle themselves, lines of stderr, and the end.

    ``signal`` learns that somebody on the agent's host asks by a signal to end the job.
    """

    frame: Callable[[AgentLink, Kind, bytes], None]
    line: Callable[[AgentLink, str], None]
    end: Callable[[AgentLink], None]
    signal: Callable[[AgentLink, int], None]


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
    """Talks to the agent of ``host`` through ``way``, in turns of ``loop``."""

    def __init__(self, host: Host, way: Way, loop: Loop, listener: Listener) -> None:
        self.host = host.name
        self.hello: Hello | None = None
        self.pids: dict[int, int] = {}  # of the ranks that run
        self.started = self.heard = time.monotonic()
        self.is_over = False  # nothing can come any more
        self.services: Mapping[str, str] = {}  # what its workers may connect to: the abstract socket of each service
        self.way = way
        self._listener = listener
        self.clock = Clock(0.0, float("inf") if way.is_remote else 0.0)
        self.problem = ""  # what was wrong with what the agent sent
        self._prelude: bytes | None = b""  # what came before the greeting; None after it
        self._frames = FrameReader()
        self._questions: dict[int, Question] = {}
        self._asked = 0
        self._tunnel = Tunnel(loop, way.send)
        # Reads the workers' connections only while there is room for what they send.
        way.attach(loop, self._receive, self._hear, self._tunnel.hold, self._take_signal)

    @property
    def is_remote(self) -> bool:
        return self.way.is_remote

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that were not written yet."""
        return self.way.waiting_bytes

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
        self.way.send(pack_message(kind, **fields))

    def send_bytes(self, kind: Kind, data: bytes) -> None:
        """Sends bytes in the same way."""
        self.way.send(pack(kind, data))

    def send_input(self, rank: int, data: bytes) -> None:
        """Sends input for the stdin of ``rank`` in the same way."""
        self.way.send(pack_output(Kind.STDIN, rank, data))

    def explain(self) -> str:
        """The reason why the agent is gone, for the user. Ends its process if it still runs."""
        self._end(_END_S)
        return self.problem or self.way.explain()

    def destroy(self) -> None:
        """Has the agent's guard kill it and everything below, or cuts its connection, which makes it end by itself."""
        self.way.destroy()
        if not self.is_remote:
            for pid in self.pids.values():
                signal_group(pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Ends the stream to the agent, which then exits with everything it started."""
        self.way.hang_up()

    def close(self, timeout_s: float) -> None:
        """Waits for the end of the agent and frees what the link holds; kills the agent if it takes longer."""
        self._tunnel.shut()
        self._end(timeout_s)
        self.way.close()

    # ---- what comes

    def _receive(self, data: bytes) -> None:
        self.heard = time.monotonic()
        if not data:
            self._finish("")
            return
        try:
            for kind, payload in self._frames.feed(self._after_greeting(data)):
                self._take(kind, payload)
        except ValueError as error:  # a FrameError, or a field that is not what it has to be
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
            self._tunnel.open(field(message, "channel", int), self.services.get(field(message, "service", str)))
        elif kind is Kind.CLOSE:
            self._tunnel.close(field(unpack_message(payload), "channel", int))
        elif kind is Kind.LEASE:
            message = unpack_message(payload)
            self.clock.learn(figure(message, "sent"), figure(message, "time"), self.heard)
        elif kind is Kind.SIGNAL:
            self._take_signal(field(unpack_message(payload), "signum", int))
        elif kind is Kind.HELLO:
            self.hello = Hello.parse(unpack_message(payload))
        elif kind is Kind.ANSWER:
            message = unpack_message(payload)
            if question := self._questions.pop(count(message, "id"), None):
                error = field(message, "error", str) if "error" in message else ""
                question.finish(message.get("answer"), printable(error[:_MOST_CHARACTERS]))
        else:
            self._listener.frame(self, kind, payload)

    def _hear(self, line: str) -> None:
        self._listener.line(self, line)

    def _take_signal(self, signum: int) -> None:
        self._listener.signal(self, signum)

    def _finish(self, problem: str) -> None:
        self.problem, self.is_over = problem, True
        self.way.ignore()
        self._tunnel.shut()
        for question in self._questions.values():
            question.finish(None, _GONE)
        self._listener.end(self)

    def _end(self, timeout_s: float) -> None:
        self.hang_up()
        if not self.way.wait(timeout_s):
            self.destroy()
            if not self.way.wait(_DEATH_S):
                self.way.kill()
