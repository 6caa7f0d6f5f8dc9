"""The hierarchical plane joins the contract suite, on hosts of equal and of unequal numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from unittest.mock import patch

from hvdlite.planes import hierarchical
from hvdlite.planes.base import DataPlane
from hvdlite.settings import Settings
from tests.contract.planes import PlaneUnderTest, connected

# The host of each rank, by the number of ranks. With one lane or several, ranks of a host side by side or apart.
HOSTS: Final = {2: "ab", 3: "aab", 4: "abab", 5: "abbac", 6: "aaabbb"}


@contextmanager
def open_on(hosts: str, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    """The connected planes of ranks on ``hosts``, a letter each. Chunks, frames and slices are short."""
    options = Settings(shm_chunk=4096, ring_chunk=4096, ring_window=3, progress_timeout=progress_timeout_s)
    with patch.object(hierarchical, "_STEP", 64), connected(hosts, options) as planes:
        yield planes


def _open(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    return open_on(HOSTS[size], progress_timeout_s)


PLANE = PlaneUnderTest("hierarchical", _open, sizes=(3, 4, 5, 6), folds_in_rank_order=False, hosts=HOSTS)
