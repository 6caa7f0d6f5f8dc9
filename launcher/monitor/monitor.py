"""hvdrun's socket for programs that ask about the running job: `hvdrun top` and the like.

It is served in hvdrun's own loop, never waits, and asks an agent only if somebody asks it. A job has no fewer chances
without it: if it cannot be made, or breaks, nobody can ask, and that is all.

A question is a line of JSON, ``{"what": ..., "ranks": [...]}``, where no ranks stand for all. ``job`` is answered here,
and `QUESTIONS` by the agents of those ranks: their answers come as they are, ``{"host", "ranks",
"answer"}`` or ``{"host", "ranks", "error"}``, one line each, and whoever shows them checks them. ``{"done": true}``
ends an answer, and ``{"ended": code}`` the job. Who sends anything else is disconnected.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple

from hvdlite.net.listener import Listener
from hvdlite.net.untrusted import parse

from ..agents.link import AgentLink, Question
from ..stream import questions
from ..stream.fields import Yes, each, exactly, optional, read
from ..stream.loop import READ, WRITE, Loop
from . import folder

ANSWER_S: Final = 20.0

_MOST_CALLERS: Final = 16
_MOST_BYTES: Final = 64 << 10  # of a question
_ATTEMPTS: Final = 3


class Asked(NamedTuple):
    """A question: about ``ranks``, or about all if that is None; ``all`` asks for the threads of hvdlite too."""

    what: Annotated[str, exactly(str)]
    ranks: Annotated[tuple[int, ...] | None, optional(each(exactly(int), _MOST_BYTES))] = None
    all: Yes = False


QUESTIONS: Final[Mapping[str, Callable[[tuple[int, ...], Asked], questions.Question]]] = {
    "blackbox": lambda ranks, _: questions.Boxes(ranks),
    "stacks": lambda ranks, asked: questions.Stacks(ranks, asked.all),
    "status": lambda ranks, _: questions.Status(ranks),
}


class _Caller:
    """One program at the socket: it asks a question, reads the answer, and may then ask the next one.

    ``asked`` are the questions to agents that are not answered yet; empty if the caller waits for nothing. While it
    waits nothing is read, and while an answer waits to be read no question is taken. So a caller that does not read
    costs the memory of one answer, until ``until``.
    """

    def __init__(self, loop: Loop, sock: socket.socket, ask: Callable[[Any, Asked], None]) -> None:
        """Takes over ``sock``, which does not block. Each question goes to ``ask``."""
        self._loop, self._sock, self._ask = loop, sock, ask
        self._question = b""
        self._answer = bytearray()
        self.asked: list[tuple[str, Sequence[int], Question]] = []
        self.until = time.monotonic() + ANSWER_S
        self.is_gone = False
        loop.watch(sock.fileno(), self._read)

    def add(self, **fields: Any) -> None:
        """Adds a line to the answer."""
        self._answer += json.dumps(fields).encode() + b"\n"

    def pass_on(self, is_late: bool) -> None:
        """Adds what agents have answered. The answer is complete when nothing is asked any more."""
        left = []
        for host, ranks, question in self.asked:
            if question.is_done and not question.error:
                self.add(host=host, ranks=ranks, answer=question.answer)
            elif question.is_done or is_late:
                self.add(host=host, ranks=ranks, error=question.error or f"no answer within {ANSWER_S:.0f} s")
            else:
                left.append((host, ranks, question))
        self.asked = left
        if not left:
            self.until = time.monotonic() + ANSWER_S
            self.add(done=True)
            self._write()

    def close(self) -> None:
        """Hangs up, after what the caller can take at once."""
        if not self.is_gone:
            with suppress(OSError):
                self._sock.send(self._answer)
            self._leave()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._question += data
        line, end, more = self._question.partition(b"\n")
        if not data or more or len(line) > _MOST_BYTES:
            self._leave()
        elif end:
            self._question = b""
            self._loop.unwatch(self._sock.fileno())
            try:
                asked = read(Asked, parse(line))
            except ValueError:
                self._leave()
            else:
                self._ask(self, asked)

    def _write(self) -> None:
        try:
            while self._answer:
                del self._answer[: self._sock.send(self._answer)]
        except BlockingIOError:
            self._loop.watch(self._sock.fileno(), self._write, WRITE)
        except OSError:
            self._leave()
        else:
            self._loop.unwatch(self._sock.fileno(), WRITE)
            self._loop.watch(self._sock.fileno(), self._read)

    def _leave(self) -> None:
        for event in (READ, WRITE):
            self._loop.unwatch(self._sock.fileno(), event)
        self._sock.close()
        self._answer.clear()
        self.asked, self.is_gone = [], True


class Monitor:
    """Listens in turns of ``loop``, until it is closed. ``job`` describes the job; ``ranks`` are those of each link.

    To be called when an agent has answered, or is gone: `tick`.
    """

    def __init__(
        self, loop: Loop, ranks: Mapping[AgentLink, Sequence[int]], job: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._loop, self._ranks, self._job = loop, ranks, job
        self._callers: list[_Caller] = []
        self._timer = loop.at(None, lambda: self.tick(time.monotonic()))
        self._folder = -1
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        self._listener: Listener | None = None
        with suppress(OSError):
            self._listener = self._listen()
            loop.watch(self._listener.fileno(), self._accept)

    @property
    def deadline(self) -> float | None:
        """When somebody's patience ends, on the monotonic clock."""
        return min((caller.until for caller in self._callers), default=None)

    def tick(self, now: float) -> None:
        """Passes on what agents have answered."""
        for caller in self._callers:
            if caller.asked:
                caller.pass_on(is_late=now >= caller.until)
            elif now >= caller.until:
                caller.close()
        self._callers = [caller for caller in self._callers if not caller.is_gone]
        self._timer.move(self.deadline)

    def close(self, code: int | None = None) -> None:
        """Hangs up, after word of the job's exit code, if it has ended, and leaves nothing behind."""
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        if self._folder >= 0:
            folder.leave(self._folder)
            self._folder = -1
        for caller in self._callers:
            if code is not None:
                caller.add(ended=code)
            caller.close()
        self._callers.clear()
        self._timer.move(None)

    def _listen(self) -> Listener:
        for _ in range(_ATTEMPTS):
            self._folder = folder.make(os.environ)
            folder.remove_stale(self._folder)
            try:
                return _listen(folder.address(self._folder, self._name))
            except FileNotFoundError:  # another hvdrun, which has just ended, has removed it
                os.close(self._folder)
                self._folder = -1
        raise FileNotFoundError

    def _accept(self) -> None:
        sock = self._listener.accept() if self._listener is not None else None
        if sock is None:
            return
        self.tick(time.monotonic())  # which forgets those who are gone
        if len(self._callers) < _MOST_CALLERS:
            self._callers.append(_Caller(self._loop, sock, self._ask))
            self._timer.move(self.deadline)
        else:
            sock.close()

    def _ask(self, caller: _Caller, asked: Asked) -> None:
        caller.until = time.monotonic() + ANSWER_S
        if asked.what == "job":
            caller.add(answer=self._job())
        elif asked.what not in QUESTIONS:
            caller.add(error="there is no such question")
        else:
            for link, ranks in self._ranks.items():
                if chosen := tuple(rank for rank in ranks if asked.ranks is None or rank in asked.ranks):
                    question = link.ask(QUESTIONS[asked.what](chosen, asked))
                    caller.asked.append((link.host, chosen, question))
        caller.pass_on(is_late=False)


def _listen(address: str) -> Listener:
    listener = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(listener.fileno(), 0o600)  # which the file gets
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return Listener(listener)
