"""The collectives that a sweep measures: how each is called, its correct result, and its bandwidths.

As in nccl-tests, *algbw* is bytes / time, and *busbw* is algbw times a factor that makes it comparable with the speed
of the hardware whatever the number of ranks n: what each rank must send at least, divided by the bytes. Bytes are those
of the result on one rank. Derivation: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvdlite.bench.measuring.pattern import is_first, is_gathered, is_sum
from hvdlite.bench.measuring.systems import System, Tensor


@dataclass(frozen=True)
class Collective:
    """One operation. ``is_right(result, size)`` checks the result for freshly filled tensors."""

    run: Callable[[System, Tensor, str], Tensor]
    is_right: Callable[[Tensor, int], bool]
    bus_factor: Callable[[int], float]
    is_shared_out: bool = False
    """True if every rank contributes only its n-th part of the result."""


COLLECTIVES: dict[str, Collective] = {
    "allreduce": Collective(
        run=lambda system, tensor, name: system.allreduce(tensor, name),
        is_right=is_sum,
        bus_factor=lambda size: 2 * (size - 1) / size,
    ),
    "allgather": Collective(
        run=lambda system, tensor, name: system.allgather(tensor, name),
        is_right=is_gathered,
        bus_factor=lambda size: (size - 1) / size,
        is_shared_out=True,
    ),
    "broadcast": Collective(
        run=lambda system, tensor, name: system.broadcast(tensor, name),
        is_right=is_first,
        bus_factor=lambda size: 1.0,
    ),
}
