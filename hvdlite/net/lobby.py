"""Where callers wait until they have proved that they are of the job.

A caller of the job proves half of it in the first message, so nearly all of the time it is known, and what has said
nothing, or something else, is a stranger. Strangers get a few seconds; over TCP, where anybody can call, the oldest of
many leaves when another one comes. No number of them makes one leave that is known, nor keeps the next one from coming
in.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Final

from hvdlite.net.entrance import Entrance
from hvdlite.net.handshake import Callee, Disagrees, Refused
from hvdlite.net.handshake_io import Talk
from hvdlite.net.poll import Watch

_HANDSHAKE_TIMEOUT_S: Final = 2.0
_MOST_STRANGERS: Final = 64


class Lobby:
    """Lets callers in at ``entrance``, which it takes over, and hands them to ``admit`` once they have proved it.

    ``admit`` takes over the connection, unless it raises Refused or OSError. ``refused`` counts those who did not come
    so far; ``trouble`` is what was wrong with one of the job. Of one thread only.
    """

    def __init__(
        self,
        watch: Watch,
        entrance: Entrance,
        new_callee: Callable[[], Callee],
        admit: Callable[[Talk[Callee]], None],
    ) -> None:
        self._watch = watch
        self._entrance = entrance
        self._new_callee = new_callee
        self._admit = admit
        self._callers: list[Talk[Callee]] = []  # the oldest first
        self.refused = 0
        self.trouble = ""
        watch.set(entrance.fileno(), select.POLLIN, self._let_in)

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        return self._callers[0].deadline if self._callers else float("inf")

    def tick(self, now: float) -> None:
        while self._callers and self._callers[0].deadline <= now:
            self._dismiss(self._callers[0])

    def close(self) -> None:
        """Ends the connections of those who wait, and listens no more."""
        for talk in self._callers:
            self._watch.close(talk.link)
        self._callers.clear()
        self._watch.let_go(self._entrance.fileno())
        self._entrance.close()

    def _let_in(self, _: int) -> None:
        if (link := self._entrance.accept()) is None:
            return
        talk = Talk(link, self._new_callee(), time.monotonic() + _HANDSHAKE_TIMEOUT_S)
        self._callers.append(talk)
        self._watch.set(link, select.POLLIN, lambda _: self._listen_to(talk))
        self._listen_to(talk)
        if not self._entrance.is_within_host:
            strangers = [caller for caller in self._callers if not caller.party.knows_secret]
            for stranger in strangers[:-_MOST_STRANGERS]:
                self._dismiss(stranger)

    def _listen_to(self, talk: Talk[Callee]) -> None:
        try:
            if talk.go_on():
                self._admit(talk)
                self._callers.remove(talk)
        except (Refused, OSError) as error:
            self.trouble = str(error) if isinstance(error, Disagrees) else self.trouble
            self._dismiss(talk)

    def _dismiss(self, talk: Talk[Callee]) -> None:
        self._callers.remove(talk)
        self._watch.close(talk.link)
        self.refused += 1
