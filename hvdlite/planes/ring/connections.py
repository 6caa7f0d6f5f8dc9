"""The connections of a native ring."""

from __future__ import annotations

import ctypes
from typing import Any

from hvdlite import native


class RingConnections:
    """Hands connections to a native ring; any thread may call, also while a collective runs. See ``hvdlite.h``.

    ``connection`` is the number of one, below ``count``, which is how many there are to each neighbour.
    Descriptors stay their owner's, who may close one after it was detached or another took its place.
    """

    def __init__(self, ring: ctypes.c_void_p, count: int) -> None:
        self._ring = ring
        self.count = count
        self._library: Any = native.library()

    def detach_left(self, connection: int) -> int:
        """Stops reading from this left connection. Returns how many frames came over it and those before it."""
        return int(self._library.hvd_ring_detach_left(self._ring, connection))

    def attach_left(self, connection: int, fd: int, keys: bytes) -> bool:
        """``keys`` (32 bytes) encrypt the connection if the ring encrypts. False if there is no memory for that."""
        return int(self._library.hvd_ring_attach_left(self._ring, connection, fd, keys)) == native.OK

    def detach_right(self, connection: int) -> None:
        self._library.hvd_ring_detach_right(self._ring, connection)

    def attach_right(self, connection: int, fd: int, received: int, keys: bytes) -> bool:
        """As `attach_left`. ``received``: how many frames the neighbour has. False also if that is impossible."""
        return int(self._library.hvd_ring_attach_right(self._ring, connection, fd, received, keys)) == native.OK

    def flush(self, connection: int) -> bool:
        """Between collectives: writes what this right connection accepts. True if something is left."""
        return bool(self._library.hvd_ring_flush(self._ring, connection))

    @property
    def corrupt(self) -> int:
        """The number of damaged frames that arrived."""
        return int(self._library.hvd_ring_corrupt(self._ring))
