"""Callers wait here until they have proved that they belong to the job.

The first message of a caller of the job contains a proof, so a caller without one is a stranger. Strangers get a few
seconds; over TCP, where anyone can call, a new one displaces the oldest of many. No number of strangers displaces a
caller with a proof, or keeps one out.

Over TCP others can read that first message and send it again, so it counts only once. Someone may have read many, of
earlier jobs with the same key. So callers with only a first message are limited too, to a number far larger than that
of callers in the middle of a handshake.
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
    """Takes over ``listener``, and passes callers to ``admit`` once they have proved that they belong to the job.

    ``admit`` takes over the connection, unless it raises Refused or OSError. ``refused`` counts dropped callers, and
    ``refused_at`` has the addresses of the first few over TCP. ``trouble`` is the error of a caller of the job that
    disagreed. For one thread.
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
