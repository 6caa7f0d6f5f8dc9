"""The shared-memory plane joins the contract suite. Its chunks are short, so that small vectors take many of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from hvdlite.planes.base import DataPlane
from hvdlite.planes.shm.part import ShmPart
from hvdlite.settings import Settings
from tests.contract.planes import PlaneUnderTest, connected


def _open(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    return connected("a" * size, Settings(shm_chunk=4096, progress_timeout=progress_timeout_s), ShmPart)


PLANE = PlaneUnderTest("shm", _open, sizes=(1, 2, 3, 4, 5), folds_in_rank_order=True)
