"""The ring joins again, with several connections to each neighbour, whose number does not divide the window."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from hvdlite.planes.base import DataPlane
from tests.contract.joined.ring import open_ring
from tests.contract.planes import PlaneUnderTest


def _open(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    # Two ranks use Unix sockets, three encrypt.
    address = None if size == 2 else "127.0.0.1"
    return open_ring(size, progress_timeout_s, window=8, connections=3, address=address, encrypt=size == 3)


PLANE = PlaneUnderTest("connections", _open, sizes=(2, 3, 4), folds_in_rank_order=False)
