"""The ring joins again, with several connections to each neighbour, whose number does not divide the window."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from hvdlite.planes.base import DataPlane
from hvdlite.settings import Settings
from tests.contract.planes import PlaneUnderTest, connected


def _open(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    options = Settings(
        plane="ring", ring_connections=3, ring_chunk=4096, progress_timeout=progress_timeout_s, encrypt_data=size == 3
    )
    return connected("abcd"[:size], options)


PLANE = PlaneUnderTest("connections", _open, sizes=(2, 3, 4), folds_in_rank_order=False)
