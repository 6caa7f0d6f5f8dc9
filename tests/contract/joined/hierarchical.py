"""The hierarchical plane joins the contract suite, on hosts of equal and of unequal numbers of ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Final
from unittest.mock import patch

from hvdlite.planes import hierarchical
from hvdlite.planes.base import DataPlane
from hvdlite.planes.opening import Opening, open_plane
from hvdlite.settings import Settings
from tests.contract.planes import PlaneUnderTest
from tests.harness import thread_ranks
from tests.harness.patience import PATIENCE_S

# The host of each rank, by the number of ranks. With one lane or several, ranks of a host side by side or apart.
HOSTS: Final = {2: "ab", 3: "aab", 4: "abab", 5: "abbac", 6: "aaabbb"}


@contextmanager
def open_on(
    hosts: str, progress_timeout_s: float, on_swap: Callable[[int], None] = lambda rank: None
) -> Iterator[Sequence[DataPlane]]:
    """The connected planes of ranks on ``hosts``, a letter each. Chunks, frames and slices are short.

    ``on_swap`` is called with the rank before each of its swaps.
    """
    size = len(hosts)
    cards, everyone = [""] * size, threading.Barrier(size)

    def opened(rank: int) -> DataPlane:
        def swap(card: str) -> list[str]:
            on_swap(rank)
            cards[rank] = card
            everyone.wait(PATIENCE_S)
            swapped = cards.copy()
            everyone.wait(PATIENCE_S)  # before anybody gives the next card
            return swapped

        settings = Settings(
            rank=rank, size=size, shm_chunk=4096, ring_chunk=4096, ring_window=3, progress_timeout=progress_timeout_s
        )
        return open_plane(
            "hierarchical", Opening(settings, hosts, range(size), bytes(32), 1, swap, time.monotonic() + PATIENCE_S)
        )

    with ExitStack() as stack:
        stack.enter_context(patch.object(hierarchical, "_STEP", 64))
        planes = thread_ranks(size, opened)
        for plane in planes:
            stack.enter_context(closing(plane))
        yield planes


def _open(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    return open_on(HOSTS[size], progress_timeout_s)


PLANE = PlaneUnderTest("hierarchical", _open, sizes=(3, 4, 5, 6), folds_in_rank_order=False, hosts=HOSTS)
