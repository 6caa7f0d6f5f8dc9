"""The collectives that a sweep measures: what one call does, what it must give, and its bandwidths.

As in nccl-tests, *algbw* is bytes / time, and *busbw* is algbw times a factor that makes it comparable with the speed
of the hardware whatever the number of ranks n: what each rank must send at least, divided by the bytes. Bytes are those
of the result on one rank. Derivation: nccl-tests, doc/PERFORMANCE.md.

Tensors are filled with a pattern that differs from rank to rank and repeats after three elements, of numbers so small
that their sums are exact in every dtype; so a result is checked without a second tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hvdlite.bench.systems import System, Tensor

PERIOD = 3


def pattern(rank: int) -> list[int]:
    """The first elements of the tensor of ``rank``."""
    return [(index + rank) % PERIOD for index in range(PERIOD)]


def fill(tensor: Tensor, rank: int) -> None:
    """Writes the pattern of ``rank``."""
    for index, value in enumerate(pattern(rank)):
        tensor[index::PERIOD] = value


def repeats(tensor: Tensor, values: Sequence[int]) -> bool:
    """Whether ``tensor`` is ``values`` over and over."""
    return all(bool((tensor[index::PERIOD] == value).all()) for index, value in enumerate(values))


def summed(size: int) -> list[int]:
    """The sum of the patterns of all ranks."""
    return [sum(column) for column in zip(*map(pattern, range(size)), strict=True)]


@dataclass(frozen=True)
class Collective:
    """One operation. ``is_right(result, size)`` tells whether the result for freshly filled tensors is correct."""

    run: Callable[[System, Tensor, str], Tensor]
    is_right: Callable[[Tensor, int], bool]
    bus_factor: Callable[[int], float]
    is_shared_out: bool = False
    """Whether every rank gives only its n-th part of the result."""


def _all_gathered(result: Tensor, size: int) -> bool:
    share = len(result) // size
    return all(repeats(result[rank * share : (rank + 1) * share], pattern(rank)) for rank in range(size))


COLLECTIVES: dict[str, Collective] = {
    "allreduce": Collective(
        run=lambda system, tensor, name: system.allreduce(tensor, name),
        is_right=lambda result, size: repeats(result, summed(size)),
        bus_factor=lambda size: 2 * (size - 1) / size,
    ),
    "allgather": Collective(
        run=lambda system, tensor, name: system.allgather(tensor, name),
        is_right=_all_gathered,
        bus_factor=lambda size: (size - 1) / size,
        is_shared_out=True,
    ),
    "broadcast": Collective(
        run=lambda system, tensor, name: system.broadcast(tensor, name),
        is_right=lambda result, size: repeats(result, pattern(0)),
        bus_factor=lambda size: 1.0,
    ),
}
