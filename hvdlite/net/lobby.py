"""Callers wait here until they have proved that they belong to the job.

A caller of the job proves half of it in its first message, so a caller that has sent nothing, or something else, is a
stranger. Strangers get a few seconds; over TCP, where anybody can call, the oldest of many is dropped when another one
comes. No number of them displaces a caller that has sent a proof, or keeps the next one out.

Over TCP that first message can be read, and sent again by others. It counts once. Somebody may have read many, of
earlier jobs with the same key, so those that have sent nothing else are limited as well, though their number is far
larger than that of callers who can be about to go on.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from hvdlite.net.handshake import Callee, Disagrees, Nonces, Refused
from hvdlite.net.handshake_io import HandshakeIO
from hvdlite.net.listener import Listener
from hvdlite.net.poll import Poller

_HANDSHAKE_TIMEOUT_S: Final = 2.0
_MOST_STRANGERS: Final = 64
_MOST_UNPROVED: Final = 512  # of those that have sent a first message
_MOST_NAMED: Final = 8


class Lobby:
    """Lets callers in at ``listener``, which it takes over, and hands them to ``admit`` once they have proved it.

    ``admit`` takes over the connection, unless it raises Refused or OSError. ``refused`` counts callers that were
    dropped before, and ``refused_at`` has the first few addresses of those who called over TCP; ``trouble`` is what
    was wrong with one of the job. For one thread.
    """

    def __init__(
        self,
        poller: Poller,
        listener: Listener,
        new_callee: Callable[[], Callee],
        admit: Callable[[HandshakeIO[Callee]], None],
    ) -> None:
        self._poller = poller
        self._listener = listener
        self._new_callee = new_callee
        self._admit = admit
        self._callers: list[HandshakeIO[Callee]] = []  # the oldest first
        self._nonces = None if listener.is_within_host else Nonces()
        self.refused = 0
        self.refused_at: list[str] = []
        self.trouble = ""
        poller.set(listener.fileno(), select.POLLIN, self._let_in)

    @property
    def due(self) -> float:
        """The time of the next `tick`."""
        return self._callers[0].deadline if self._callers else float("inf")

    def tick(self, now: float) -> None:
        while self._callers and self._callers[0].deadline <= now:
            self._dismiss(self._callers[0])

    def close(self) -> None:
        """Ends waiting connections and stops listening."""
        for handshake in self._callers:
            self._poller.close(handshake.sock)
        self._callers.clear()
        self._poller.let_go(self._listener.fileno())
        self._listener.close()

    def _let_in(self, _: int) -> None:
        if (sock := self._listener.accept()) is None:
            return
        callee = self._new_callee()
        callee.nonces = self._nonces
        handshake = HandshakeIO(sock, callee, time.monotonic() + _HANDSHAKE_TIMEOUT_S)
        self._callers.append(handshake)
        self._poller.set(sock, select.POLLIN, lambda _: self._listen_to(handshake))
        self._listen_to(handshake)
        if not self._listener.is_within_host:
            self._limit(_MOST_STRANGERS, knows_secret=False)
            self._limit(_MOST_UNPROVED, knows_secret=True)

    def _limit(self, most: int, *, knows_secret: bool) -> None:
        those = [caller for caller in self._callers if caller.party.knows_secret is knows_secret]
        for caller in those[:-most]:
            self._dismiss(caller)

    def _listen_to(self, handshake: HandshakeIO[Callee]) -> None:
        try:
            if handshake.go_on():
                self._admit(handshake)
                self._callers.remove(handshake)
        except (Refused, OSError) as error:
            self.trouble = str(error) if isinstance(error, Disagrees) else self.trouble
            self._dismiss(handshake)

    def _dismiss(self, handshake: HandshakeIO[Callee]) -> None:
        self._callers.remove(handshake)
        self.refused += 1
        if not self._listener.is_within_host and len(self.refused_at) < _MOST_NAMED:
            with suppress(OSError):  # it has left
                address = handshake.sock.getpeername()[0].removeprefix("::ffff:")
                if address not in self.refused_at:
                    self.refused_at.append(address)
        self._poller.close(handshake.sock)
