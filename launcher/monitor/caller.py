"""One program at hvdrun's socket: it asks a question, reads the answers, and may then ask the next one."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from hvdlite.observe.untrusted import parse

from ..agents.fields import field, improper
from ..stream.loop import WRITE, Loop

QUESTIONS: Final[Mapping[str, tuple[str, ...]]] = {"job": (), "blackbox": (), "stacks": ("all",), "status": ()}
"""What may be asked, and the flags that each question may have."""

_READ_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 64 << 10  # of a question


class Asked(NamedTuple):
    """A question: about ``ranks``, or about all if that is None. Of its fields, only those that are known are kept."""

    what: str
    ranks: frozenset[int] | None
    flags: Mapping[str, bool]


def read(line: bytes) -> Asked:
    """Reads a line that anybody may have sent. Raises ValueError if it is no question."""
    question = parse(line)
    what = field(question, "what", str)
    ranks = question.get("ranks")
    if ranks is not None and not (isinstance(ranks, list) and all(type(rank) is int for rank in ranks)):
        raise improper("ranks")
    flags = {name: field(question, name, bool) for name in QUESTIONS.get(what, ()) if name in question}
    return Asked(what, None if ranks is None else frozenset(ranks), flags)


Ask = Callable[["Caller", Asked], None]


class Caller:
    """Takes over ``sock``, which does not block. Each question goes to ``ask``, which calls `say`, and then `finish`.

    While a question is open nothing is read, and while answers wait to be read no question is taken. So a caller that
    does not read costs the memory of one answer, until its patience is over.
    """

    def __init__(self, loop: Loop, sock: socket.socket, ask: Ask) -> None:
        self._loop, self._sock, self._ask = loop, sock, ask
        self._asked = b""
        self._answer = bytearray()
        self.is_gone = False
        self.is_open = False  # a question is
        self._loop.watch(sock.fileno(), self._read)

    @property
    def is_reading(self) -> bool:
        """True if an answer waits for it to read on."""
        return bool(self._answer)

    def say(self, **fields: Any) -> None:
        """Adds a line to the answer."""
        self._answer += json.dumps(fields).encode() + b"\n"

    def finish(self) -> None:
        """The answer is complete."""
        self.is_open = False
        self.say(done=True)
        self._write()

    def close(self) -> None:
        """Hangs up, after what the caller can take at once."""
        if not self.is_gone:
            with suppress(OSError):
                self._sock.send(self._answer)
            self._leave()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave()
            return
        self._asked += data
        line, end, more = self._asked.partition(b"\n")
        if end and not more:
            self._asked = b""
            self._loop.unwatch(self._sock.fileno())
            self._take(line)
        elif more or len(line) > _MOST_BYTES:
            self._leave()

    def _take(self, line: bytes) -> None:
        try:
            asked = read(line)
        except ValueError:
            self._leave()
            return
        self.is_open = True
        self._ask(self, asked)

    def _write(self) -> None:
        try:
            while self._answer:
                del self._answer[: self._sock.send(self._answer)]
        except BlockingIOError:
            self._loop.watch(self._sock.fileno(), self._write, WRITE)
            return
        except OSError:
            self._leave()
            return
        self._loop.unwatch(self._sock.fileno())
        self._loop.watch(self._sock.fileno(), self._read)

    def _leave(self) -> None:
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._answer.clear()
        self.is_gone, self.is_open = True, False
