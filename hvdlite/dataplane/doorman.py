"""Lets the left neighbour of a ring in, the first time and after each end of one of its connections."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from hvdlite.dataplane.handshake import Callee, Disagrees, Refused
from hvdlite.dataplane.streams import prepare
from hvdlite.dataplane.talk import Talk
from hvdlite.dataplane.watch import Watch
from hvdlite.dataplane.wires import Wires

_HANDSHAKE_TIMEOUT_S: Final = 2.0
_MOST_GUESTS: Final = 64
_PAUSE_S: Final = 0.1


class Doorman:
    """Anybody may connect to ``listener``; whoever proves to be the left neighbour becomes a left connection.

    Strangers get a few seconds, and the oldest of many leaves when another one comes. Of one thread only.

    ``admitted`` counts the left connections by their number, ``refused`` the strangers; ``trouble`` is what was wrong
    with the neighbour, if it came.
    """

    def __init__(self, watch: Watch, wires: Wires, listener: socket.socket, new_callee: Callable[[], Callee]) -> None:
        self._watch = watch
        self._wires = wires
        self._listener = listener
        self._new_callee = new_callee
        self._guests: list[Talk[Callee]] = []  # the oldest first
        self._left: dict[int, socket.socket] = {}
        self._cut_off: set[int] = set()
        self._listen_at = 0.0  # infinite while the listener is watched
        self.admitted = [0] * wires.connections
        self.refused = 0
        self.trouble = ""

    @property
    def is_cut_off(self) -> bool:
        """A connection broke or was given up: the neighbour may not have the last acknowledgements, and will call."""
        return bool(self._cut_off)

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        return min(self._listen_at, self._guests[0].deadline if self._guests else float("inf"))

    def tick(self, now: float) -> None:
        while self._guests and self._guests[0].deadline <= now:
            self._dismiss(self._guests[0])
        if self._listen_at <= now:
            self._watch.set(self._listener, select.POLLIN, self._accept)
            self._listen_at = float("inf")

    def close(self) -> None:
        """Ends all connections. The native ring has to be done with the left ones."""
        for talk in self._guests:
            self._watch.close(talk.link)
        for connection, link in self._left.items():
            self._wires.detach_left(connection)
            self._watch.close(link)
        self._watch.close(self._listener)

    def _accept(self, _: int) -> None:
        try:
            link, _ = self._listener.accept()
            link.setblocking(False)
            prepare(link)
        except (BlockingIOError, ConnectionError):  # the guest left before it was let in
            return
        except OSError:  # no descriptor is left, say: whoever knocks will wait
            self._watch.let_go(self._listener)
            self._listen_at = time.monotonic() + _PAUSE_S
            return
        if len(self._guests) == _MOST_GUESTS:
            self._dismiss(self._guests[0])
        talk = Talk(link, self._new_callee(), time.monotonic() + _HANDSHAKE_TIMEOUT_S)
        self._guests.append(talk)
        self._watch.set(link, select.POLLIN, lambda _: self._answer(talk))

    def _answer(self, talk: Talk[Callee]) -> None:
        try:
            if talk.go_on():
                self._admit(talk)
        except (Refused, OSError) as error:
            self.trouble = str(error) if isinstance(error, Disagrees) else self.trouble
            self._dismiss(talk)

    def _admit(self, talk: Talk[Callee]) -> None:
        # Nothing more may be received over the old connection once the number has been told. The neighbour has given it
        # up before it called, so if this call fails now, there is none until the next one.
        connection = talk.party.connection
        received = self._wires.detach_left(connection)
        if connection in self._left:
            self._watch.close(self._left.pop(connection))
            self._cut_off.add(connection)
        talk.say(talk.party.welcome(received))
        if not self._wires.attach_left(connection, talk.link.fileno(), talk.party.keys):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self._guests.remove(talk)
        self._left[connection] = talk.link
        self._watch.set(talk.link, select.POLLRDHUP, lambda events: self._neighbour_is_done(connection, events))
        self._cut_off.discard(connection)
        self.admitted[connection] += 1

    def _neighbour_is_done(self, connection: int, events: int) -> None:
        """The neighbour sends nothing more over this connection; what it sent may still be waiting to be received.

        It has all been delivered to this host, and the neighbour gets to know that.
        """
        link = self._left[connection]
        self._watch.let_go(link)
        if events & (select.POLLERR | select.POLLHUP):
            self._cut_off.add(connection)
        with suppress(OSError):  # it may have ended in both directions
            link.shutdown(socket.SHUT_WR)

    def _dismiss(self, talk: Talk[Callee]) -> None:
        self._guests.remove(talk)
        self._watch.close(talk.link)
        self.refused += 1
