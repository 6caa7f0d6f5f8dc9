"""hvdrun's socket for programs that ask about the running job: `hvdrun top` and the like.

It is served in hvdrun's own loop, never waits, and asks an agent only if somebody asks it. A job has no fewer chances
without it: if it cannot be made, or breaks, nobody can ask, and that is all.

A question is a line of JSON, ``{"what": ..., "ranks": [...]}``, where no ranks stand for all. ``job`` is answered here,
and the others of `QUESTIONS` by the agents of those ranks: their answers come as they are, ``{"host", "ranks",
"answer"}`` or ``{"host", "ranks", "error"}``, one line each, and whoever shows them checks them. ``{"done": true}``
ends an answer, and ``{"ended": code}`` the job. Who sends anything else is hung up on.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from hvdlite.net.entrance import Listener

from ..agents.link import AgentLink, Question
from ..stream.loop import Loop
from . import folder
from .caller import QUESTIONS, Asked, Caller

ANSWER_S: Final = 20.0

_MOST_CALLERS: Final = 16
_ATTEMPTS: Final = 3


@dataclass(slots=True)
class _Open:
    """What a caller waits for, or what waits for a caller that reads slowly."""

    asked: list[tuple[str, Sequence[int], Question]]
    until: float


class Monitor:
    """Listens in turns of ``loop``, until it is closed. ``job`` describes the job; ``ranks`` are those of each link.

    To be called when an agent has answered, or is gone: `tick`.
    """

    def __init__(
        self, loop: Loop, ranks: Mapping[AgentLink, Sequence[int]], job: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._loop, self._ranks, self._job = loop, ranks, job
        self._callers: dict[Caller, _Open] = {}
        self._timer = loop.at(None, lambda: self.tick(time.monotonic()))
        self._folder = -1
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        self._entrance: Listener | None = None
        with suppress(OSError):
            self._entrance = self._listen()
            loop.watch(self._entrance.fileno(), self._accept)

    @property
    def deadline(self) -> float | None:
        """When somebody's patience ends, on the monotonic clock."""
        return min((each.until for each in self._callers.values()), default=None)

    def tick(self, now: float) -> None:
        """Passes on what agents have answered."""
        for caller, waiting in list(self._callers.items()):
            if caller.is_open:
                self._pass_on(caller, waiting, is_late=now >= waiting.until)
            elif now >= waiting.until:
                caller.close()
            if caller.is_gone:
                del self._callers[caller]
        self._timer.move(self.deadline)

    def close(self, code: int | None = None) -> None:
        """Hangs up, after word of the job's exit code, if it has ended, and leaves nothing behind."""
        if self._entrance is not None:
            self._loop.unwatch(self._entrance.fileno())
            self._entrance.close()
            self._entrance = None
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        if self._folder >= 0:
            folder.leave(self._folder)
            self._folder = -1
        for caller in self._callers:
            if code is not None:
                caller.say(ended=code)
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
        sock = self._entrance.accept() if self._entrance is not None else None
        if sock is None:
            return
        now = time.monotonic()
        self.tick(now)  # which forgets those who are gone
        if len(self._callers) >= _MOST_CALLERS:
            sock.close()
            return
        self._callers[Caller(self._loop, sock, self._ask)] = _Open([], now + ANSWER_S)
        self._timer.move(self.deadline)

    def _ask(self, caller: Caller, asked: Asked) -> None:
        waiting = self._callers[caller]
        waiting.until = time.monotonic() + ANSWER_S
        what, wanted, flags = asked
        if what == "job":
            caller.say(answer=self._job())
            caller.finish()
        elif what in QUESTIONS:
            for link, ranks in self._ranks.items():
                chosen = [rank for rank in ranks if wanted is None or rank in wanted]
                if chosen:
                    waiting.asked.append((link.host, chosen, link.ask(what, ranks=chosen, more=flags)))
            self._pass_on(caller, waiting)
        else:
            caller.say(error="there is no such question")
            caller.finish()

    def _pass_on(self, caller: Caller, waiting: _Open, *, is_late: bool = False) -> None:
        """Adds what has been answered to the answer, which is complete when nothing is asked any more."""
        left = []
        for host, ranks, question in waiting.asked:
            if question.is_done and not question.error:
                caller.say(host=host, ranks=ranks, answer=question.answer)
            elif question.is_done or is_late:
                caller.say(host=host, ranks=ranks, error=question.error or f"no answer within {ANSWER_S:.0f} s")
            else:
                left.append((host, ranks, question))
        waiting.asked = left
        if not left:
            waiting.until = time.monotonic() + ANSWER_S
            caller.finish()


def _listen(address: str) -> Listener:
    listener = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(listener.fileno(), 0o600)  # which the file gets
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return Listener(listener)
