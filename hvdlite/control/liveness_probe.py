"""Finds out why the connection of a peer ended: its process has ended, is stopped, is cut off, or comes back.

The kernel of its host knows. A connection to a port that the peer's process holds open (`LivenessListener`, and at the
root the port that all dial) is

- refused twice in a row: the process has ended, and the peer is lost at once;
- accepted and closed, or greeted: the process runs, and gets ``peer_timeout`` to come back;
- accepted and nothing more: the process is stopped, or gets no processor time;
- not answered: its host is unreachable.

In the last two cases the connection ended because heartbeats were missing for a while, and the rest of
``peer_timeout`` remains. One refusal proves nothing, because the network may have cut this connection too. The probe
interprets no byte of the other side.
"""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress
from enum import IntEnum

from hvdlite.errors import ENDED
from hvdlite.net.listening import endpoint, listen, resolve, split
from hvdlite.settings import Settings

_BURST = 64  # connections dropped in one go
_LOOK_S = 0.05
_LOOK_AT_WELL_S = 0.2
_ANSWER_S = 1.0  # many kernels repeat a call after 1 s, 3 s and 7 s, and a network may be back in between
_SILENCE = 0.6  # of peer_timeout: the time without a heartbeat after which a connection ends


class LivenessListener:
    """Holds a TCP port of ``address`` open, at ``endpoint``, while its process lives or until it is closed."""

    def __init__(self, address: str, ports: range | None) -> None:
        self._listener = listen(address, ports)
        self.endpoint = endpoint(address, self._listener.name()[1])

    def fileno(self) -> int:
        return self._listener.fileno()

    def drop_callers(self) -> None:
        """Disconnects callers. Due when the listener is readable."""
        for _ in range(_BURST):
            if (caller := self._listener.accept()) is None:
                break
            caller.close()

    def close(self) -> None:
        self._listener.close()


class _Finding(IntEnum):
    UNREACHABLE = 0
    SILENT = 1
    WELL = 2


class LivenessProbe:
    """Watches one peer, from the end of its connection until it is back or `look` returns why it is lost.

    ``due`` is the time of the next `look`, on the monotonic clock.
    """

    def __init__(self, endpoint: str, settings: Settings) -> None:
        self._family, self._where = resolve(*split(endpoint))
        self._timeout_s = settings.peer_timeout
        self._silence_s = settings.peer_timeout + settings.heartbeat_interval
        self._probe: socket.socket | None = None
        self._asked_at = 0.0
        self._finding = _Finding.UNREACHABLE
        self._refusals = 0
        self._since = time.monotonic()
        self.due = self._since + _LOOK_S  # most are back before

    @staticmethod
    def silence_ms(settings: Settings) -> int:
        """The silence after which a connection ends."""
        return int(settings.peer_timeout * _SILENCE * 1000)

    def look(self) -> str | None:
        """Probes if that is due. Returns why the peer is lost, or None while it may still come back."""
        now = time.monotonic()
        if now < self.due:
            return None
        self._ask()
        self.due = now + (_LOOK_AT_WELL_S if self._finding is _Finding.WELL else _LOOK_S)
        absent_s = now - self._since
        if self._refusals > 1:
            return ENDED
        if self._finding is _Finding.WELL:
            if absent_s < self._timeout_s:
                return None
            return f"its connection ended and was not re-established within {absent_s:.1f} s, although its process ran"
        if absent_s < self._silence_s - self._timeout_s * _SILENCE:
            return None
        if self._finding is _Finding.SILENT:
            return f"its heartbeats stopped for {self._silence_s:.1f} s (stopped, or out of memory?)"
        return f"its host could not be reached for {self._silence_s:.1f} s"

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _ask(self) -> None:
        if self._probe is None:
            try:
                self._probe = socket.socket(self._family, socket.SOCK_STREAM)
            except OSError:  # no descriptor is free: the next look tries again
                return
            self._probe.setblocking(False)
            self._asked_at = time.monotonic()
        error = self._probe.connect_ex(self._where)
        if error in (errno.EINPROGRESS, errno.EALREADY):
            if time.monotonic() - self._asked_at >= _ANSWER_S:
                self.close()
            return
        if error == errno.ECONNREFUSED:
            self._refusals += 1
        elif error in (0, errno.EISCONN):
            self._refusals = 0
            with suppress(OSError):  # an earlier look has done so
                self._probe.shutdown(socket.SHUT_WR)  # the kernel keeps a caller that sends nothing from the process
            try:
                self._probe.recv(1)
                self._finding = _Finding.WELL
            except BlockingIOError:
                self._finding = max(self._finding, _Finding.SILENT)  # if it was well before, it may just be slow now
                return
            except OSError:  # reset: the port may have been closed just now, so it is dialled again
                pass
        self.close()
