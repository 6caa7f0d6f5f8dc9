"""Runs candidates in turns, and times every iteration by its slowest rank.

A machine's speed drifts with clocks, caches and other programs. Candidates therefore take turns, a block of iterations
each, there and back (A B B A ...), so that drift affects all of them alike, and each of them also follows itself. A
block begins with one iteration on fresh data, whose result is checked, then a barrier and the untimed iterations of the
warm-up. Timed iterations follow each other back to back without a barrier, as in nccl-tests: a barrier's own skew would
be as long as a small collective. Ranks start together because each waits for the others in the iteration before.

The time of an iteration is the longest that any rank took for it; medians and the like are over iterations. Processor
time is that of all ranks and their threads, of the timed iterations and the warm-up alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

import hvdlite as hvd
from hvdlite.bench.measuring.pattern import nanoseconds
from hvdlite.errors import HvdError

Times = npt.NDArray[np.float64]
"""Seconds of each iteration."""

Clock = Callable[[], int]
"""Counts nanoseconds."""


class Measured(NamedTuple):
    """What a candidate took: the ``times`` of its iterations, and seconds of processor time for each, of all ranks.

    ``medians`` are those of its blocks.
    """

    times: Times
    processor_s: float
    medians: Times


BLOCKS = 15
"""As many pairs of blocks as a ratio of two candidates is taken from."""

_MOST_BYTES = 512 << 20  # of all iterations of one size, unless that makes them too few
_FEWEST, _MOST = BLOCKS, 500


class WrongResult(HvdError):
    """A system computed a wrong result, so its times mean nothing. Every rank raises it."""


class Timed(Protocol):
    """One way of doing the work."""

    @property
    def label(self) -> str:
        """Its name in the table."""

    def is_right(self) -> bool:
        """Does the work once on fresh data. True if this rank's result is correct."""

    def block(self, length: int, warmup: int, clock: Clock) -> Times:
        """Returns this rank's times of ``length`` iterations after ``warmup`` untimed ones."""

    def processor_s(self) -> float:
        """Returns the processor time that the process of this rank has used, in seconds."""


@dataclass(frozen=True)
class Candidate:
    """A way of doing the work in this process; ``run`` is timed."""

    label: str
    run: Callable[[], Any]
    is_right: Callable[[], bool]

    def block(self, length: int, warmup: int, clock: Clock) -> Times:
        return np.array(nanoseconds(self.run, length, warmup, clock)) / 1e9

    def processor_s(self) -> float:
        return time.process_time()


def default_iterations(nbytes: int) -> int:
    """Many for small tensors, whose times scatter; few for large ones, whose times are long."""
    return min(max(_MOST_BYTES // nbytes, _FEWEST), _MOST)


def measure(
    candidates: Sequence[Timed], iterations: int, warmup: int, clock: Clock = time.perf_counter_ns
) -> Mapping[str, Measured]:
    """Measures each candidate, by label, the same on every rank. Raises WrongResult.

    All ranks call it with the same candidates. ``warmup`` is the number of untimed iterations of each block.
    """
    blocks: dict[str, list[Times]] = {candidate.label: [] for candidate in candidates}
    used_s = dict.fromkeys(blocks, 0.0)
    lengths = _lengths(iterations)
    for number, length in enumerate(lengths):
        for candidate in candidates if number % 2 == 0 else reversed(candidates):
            _require_right(candidate)
            hvd.barrier()
            used_before = candidate.processor_s()
            blocks[candidate.label].append(candidate.block(length, warmup, clock))
            used_s[candidate.label] += candidate.processor_s() - used_before
    count = iterations + warmup * len(lengths)
    ends = np.cumsum(lengths)[:-1]
    measured = {}
    for label, parts in blocks.items():
        times = hvd.allreduce(np.concatenate(parts), op=hvd.Max)
        processor_s = float(hvd.allreduce(np.array(used_s[label]), op=hvd.Sum)) / count
        measured[label] = Measured(times, processor_s, np.array([np.median(part) for part in np.split(times, ends)]))
    return measured


def _lengths(iterations: int) -> list[int]:
    """``iterations`` split into blocks of nearly equal length."""
    blocks = min(BLOCKS, iterations)
    return [iterations * (block + 1) // blocks - iterations * block // blocks for block in range(blocks)]


def _require_right(candidate: Timed) -> None:
    flags = hvd.allgather(np.array([candidate.is_right()]))
    if not flags.all():
        ranks = ", ".join(map(str, np.flatnonzero(~flags)))
        raise WrongResult(f"{candidate.label} gave a wrong result on rank {ranks}; do not trust it on this machine.")
