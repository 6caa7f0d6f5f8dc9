"""hvdrun's end of the connection to one agent."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from hvdlite.host.processes import signal_group

from ..agent.tunnel import Tunnel
from ..stream.frames import GREETING, FrameError
from ..stream.hello import Hello
from ..stream.loop import Loop
from ..stream.messages import (
    Alive,
    Answer,
    Ask,
    Close,
    Data,
    Decoder,
    End,
    Files,
    FromAgent,
    Input,
    Lease,
    Message,
    Open,
    Signal,
    Signalled,
    Start,
    encode,
)
from ..where.hosts import Host
from .ways import Receiver, Way

if TYPE_CHECKING:
    from ..stream import questions

_MAX_PRELUDE_BYTES: Final = 64 << 10  # what login scripts may write before the agent's greeting
_END_S: Final = 2.0
_DEATH_S: Final = 1.0
_GONE: Final = "its agent has ended"


class Question:
    """A question to an agent; ``is_done`` once there is an ``answer`` or an ``error``."""

    def __init__(self) -> None:
        self.is_done, self.answer, self.error = False, cast(Any, None), ""

    def finish(self, answer: Any, error: str) -> None:
        self.is_done, self.answer, self.error = True, answer, error


class Listener(NamedTuple):
    """Receives what comes from agents: messages, but for those about connections, lines of stderr, and the end.

    When it receives an answer, or an end, the questions have been finished.
    """

    message: Callable[[AgentLink, FromAgent], None]
    line: Callable[[AgentLink, str], None]
    end: Callable[[AgentLink], None]


class Clock:
    """The offset of an agent's monotonic clock, from the fastest exchange of a lease."""

    def __init__(self, offset_s: float, uncertain_s: float) -> None:
        self.offset_s = offset_s
        self.uncertain_s = uncertain_s  # half of what that exchange took

    def learn(self, sent: float, theirs: float, received: float) -> None:
        """Records that their clock showed ``theirs`` between two times of ours."""
        if (received - sent) / 2 < self.uncertain_s:
            self.offset_s, self.uncertain_s = theirs - (sent + received) / 2, (received - sent) / 2

    def translate(self, theirs: float) -> float:
        """Converts a time of theirs to ours, within ``uncertain_s``."""
        return theirs - self.offset_s


class AgentLink:
    """The connection to the agent of ``host`` through ``way``, in turns of ``loop``. ``listener`` may be replaced."""

    def __init__(self, host: Host, way: Way, loop: Loop, listener: Listener) -> None:
        self.host = host.name
        self.hello: Hello | None = None
        self.pids: dict[int, int] = {}  # of the ranks that run
        self.started = self.received_at = time.monotonic()
        self.is_over = False  # nothing can come any more
        self.services: Mapping[str, str] = {}  # what its workers may connect to: the abstract socket of each service
        self.way = way
        self.listener = listener
        self.clock = Clock(0.0, float("inf") if way.is_remote else 0.0)
        self.problem = ""  # what was wrong with what the agent sent
        self._prelude: bytes | None = b""  # what came before the greeting; None after it
        self._decoder = Decoder()
        self._questions: dict[int, Question] = {}
        self._asked = 0
        self._tunnel = Tunnel(loop, self.send)
        # Reads the workers' connections only while there is room for what they send.
        way.attach(loop, Receiver(self._receive, self._show, self._tunnel.hold, self._take_signal))

    @property
    def is_remote(self) -> bool:
        return self.way.is_remote

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that were not written yet."""
        return self.way.waiting_bytes

    def ask(self, what: questions.Question) -> Question:
        """Asks the agent; turns of the loop bring the answer."""
        question = Question()
        if self.is_over:
            question.finish(None, _GONE)
            return question
        self._asked += 1
        self._questions[self._asked] = question
        self.send(Ask(self._asked, what))
        return question

    def send(self, message: Message) -> None:
        """Sends a message. If the agent is gone, the message is dropped, and the listener receives the end."""
        self.way.send(encode(message))

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
        self.received_at = time.monotonic()
        if not data:
            self._finish("")
            return
        try:
            for message in self._decoder.feed(self._after_greeting(data)):
                self._take(message)
        except ValueError as error:  # a FrameError, or what the listener does not accept
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

    def _take(self, message: Message) -> None:
        match message:
            case Data(channel, data):
                self._tunnel.deliver(channel, data)
            case Open(channel, service):
                self._tunnel.open(channel, self.services.get(service))
            case Close(channel):
                self._tunnel.close(channel)
            case Alive(sent, theirs):
                self.clock.learn(sent, theirs, self.received_at)
            case Hello():
                self.hello = message
            case Start() | Signal() | End() | Ask() | Lease() | Files() | Input():
                raise FrameError(f"the message {type(message).__name__} is for agents")
            case Answer(number, answer, error):
                if question := self._questions.pop(number, None):
                    question.finish(answer, error)
                self.listener.message(self, message)
            case _:
                self.listener.message(self, message)

    def _show(self, line: str) -> None:
        self.listener.line(self, line)

    def _take_signal(self, signum: int) -> None:
        self.listener.message(self, Signalled(signum))

    def _finish(self, problem: str) -> None:
        self.problem, self.is_over = problem, True
        self.way.ignore()
        self._tunnel.shut()
        for question in self._questions.values():
            question.finish(None, _GONE)
        self.listener.end(self)

    def _end(self, timeout_s: float) -> None:
        self.hang_up()
        if not self.way.wait(timeout_s):
            self.destroy()
            if not self.way.wait(_DEATH_S):
                self.way.kill()
