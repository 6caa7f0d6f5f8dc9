"""The ring joins the contract suite, over both transports. Its frames are short, so that small vectors take many."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from hvdlite.planes.base import DataPlane
from hvdlite.settings import Settings
from tests.contract.planes import PlaneUnderTest, connected


def _open(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    # Odd sizes use TCP and even ones Unix sockets, and the largest encrypts.
    hosts = "abcde"[:size] if size % 2 else "a" * size
    options = Settings(
        plane="ring", ring_chunk=4096, ring_window=3, progress_timeout=progress_timeout_s, encrypt_data=size == 5
    )
    return connected(hosts, options)


PLANE = PlaneUnderTest("ring", _open, sizes=(2, 3, 4, 5), folds_in_rank_order=False)
