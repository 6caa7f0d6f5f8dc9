"""The pattern that fills tensors, so that a result can be checked without a second tensor, and the timed loop.

The pattern differs from rank to rank and repeats after three elements, which are so small that their sums are exact in
every dtype. This module imports nothing from hvdlite, because MPI's ranks use it too and have no hvdlite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

PERIOD = 3


def pattern(rank: int) -> list[int]:
    """The first elements of the tensor of ``rank``."""
    return [(index + rank) % PERIOD for index in range(PERIOD)]


def fill(tensor: Any, rank: int) -> None:
    """Writes the pattern of ``rank``."""
    for index, value in enumerate(pattern(rank)):
        tensor[index::PERIOD] = value


def repeats(tensor: Any, values: Sequence[int]) -> bool:
    """True if ``tensor`` is ``values`` over and over."""
    return all(bool((tensor[index::PERIOD] == value).all()) for index, value in enumerate(values))


def is_sum(result: Any, size: int) -> bool:
    """True if ``result`` is the sum of the tensors of ``size`` ranks."""
    return repeats(result, [sum(column) for column in zip(*map(pattern, range(size)), strict=True)])


def is_gathered(result: Any, size: int) -> bool:
    """True if ``result`` is the tensors of ``size`` ranks, one after the other."""
    share = len(result) // size
    return all(repeats(result[rank * share : (rank + 1) * share], pattern(rank)) for rank in range(size))


def is_first(result: Any, size: int) -> bool:
    """True if ``result`` is the tensor of rank 0."""
    return repeats(result, pattern(0))


def nanoseconds(
    run: Callable[[], Any], length: int, warmup: int, clock: Callable[[], int] = time.perf_counter_ns
) -> list[int]:
    """Times ``length`` calls of ``run`` back to back, after ``warmup`` untimed ones."""
    for _ in range(warmup):
        run()
    times = [0] * length
    for iteration in range(length):
        begin = clock()
        run()
        times[iteration] = clock() - begin
    return times
