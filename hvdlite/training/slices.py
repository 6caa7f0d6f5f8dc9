"""Compares one slice of the parameters in each step, to find ranks that drift apart.

Ranks drift apart when one of them changes a gradient in flight, skips a step, or has another learning rate. No metric
shows it. So the checksum of one slice travels with the gradients of each step. Within `TURNS` steps all slices have had
their turn.

The vector has three floats for each rank: the number of the turn and the two halves of the checksum. A rank fills in
its own and leaves zeros for the others, so the sum has the numbers of all ranks. The vector has the dtype, operation
and scale of most gradients, so it runs in one batch with them. Like gradients it is in memory that the ranks of a host
share, because the plane copies all tensors of a batch if one is elsewhere. Scaling keeps different numbers different: a
half has 16 bits, a turn 20, and a float 24.

A rank that has joined adds zeros, and counts no turns. Turns that differ are not compared; all ranks go on from the
largest one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Final, Generic, NamedTuple

import numpy as np
import numpy.typing as npt

from hvdlite.ops import Buffer, Group, named_ranks
from hvdlite.ops.memory import shared_empty
from hvdlite.training.naming import P

TURNS: Final = 1000
"""All parameters have been compared after this many turns at most."""

Rows = slice | None | EllipsisType
"""The index of some rows of a parameter, along its first dimension; None for a parameter without dimensions. They are
read in every step, so a device must not be asked for them. ``...`` is the whole parameter, read once."""

MemoryOf = Callable[[P, Rows], Buffer | None]
Checksum = Callable[[int, int, int], int]
"""Takes the checksum of the bytes before, an address, and a number of bytes; returns the checksum of all bytes."""

_LEAST_ELEMENTS: Final = 1 << 13  # in a slice: fewer would cost as much
_LAST_TURN: Final = 1 << 20


class Difference(NamedTuple):
    """A warning that parameters are not equal on all ranks, and the index of the rank that logs it."""

    text: str
    reporter: int


class _Slice(NamedTuple, Generic[P]):
    name: str
    parameter: P
    rows: Rows


class Slices(Generic[P]):
    """The named parameters of one optimizer in one group. Parameters that the host cannot read have no turn."""

    def __init__(self, members: Sequence[tuple[str, P]], group: Group, memory_of: MemoryOf[P]) -> None:
        self._memory_of = memory_of
        self._turns = _planned([(name, parameter) for name, parameter in members if self._can_read(parameter)])
        self._rank, self._size, self._ranks = group.rank, group.size, group.ranks
        self._turn = 0
        try:
            self._vector = shared_empty(3 * group.size, np.float32)
        except MemoryError:
            self._vector = np.empty(3 * group.size, np.float32)

    def read(self, of: Checksum) -> npt.NDArray[np.float32] | None:
        """Takes the next turn. Returns what this rank adds to the sum, always in the same memory; None if nothing."""
        if not self._turns:
            return None
        self._turn = self._turn % _LAST_TURN + 1
        checksum = 0
        for each in self._of_turn(self._turn):
            try:
                memory = self._memory_of(each.parameter, each.rows)
            except ValueError:  # it cannot be compared
                continue
            if memory is not None:
                checksum = checksum_of(memory, of, checksum)
        self._vector[:] = 0
        self._vector[3 * self._rank : 3 * self._rank + 3] = self._turn, checksum >> 16, checksum & 0xFFFF
        return self._vector

    def compare(self, total: npt.NDArray[np.float32], step: int) -> Difference | None:
        """Compares ``total``, the sum of what all ranks read in ``step``."""
        own = total[3 * self._rank : 3 * self._rank + 3]
        if total.tobytes() == own.tobytes() * self._size:
            return None
        rows = total.reshape(self._size, 3)
        turns = np.rint(rows[:, 0] * (self._turn / own[0])).astype(int).tolist() if own[0] > 0 else []
        self._turn = max(turns, default=self._turn)
        for turn in sorted({*turns} - {0}):
            there = [rank for rank in range(self._size) if turns[rank] == turn]
            unlike = [rank for rank in there if rows[rank].tobytes() != rows[there[0]].tobytes()]
            if unlike:
                names = dict.fromkeys(repr(each.name) for each in self._of_turn(turn))
                ranks = self._ranks
                others = named_ranks([ranks[rank] for rank in unlike])
                text = (
                    f"ranks no longer have the same parameters: in step {step}, {' or '.join(names)} of "
                    f"{others} is not that of rank {ranks[there[0]]}. Usual causes: "
                    "gradients changed between backward() and step() without optimizer.synchronize(), as by "
                    "grad.data.clamp_(); unequal learning rates or optimizer state; a step that some ranks skipped; "
                    "hosts with different CPUs or numbers of threads. Broadcast parameters and optimizer state to go "
                    "on. HVDLITE_CHECK_PARAMETERS=error makes it an error, and 0 turns this check off"
                )
                return Difference(text, there[0])
        return None

    def _can_read(self, parameter: P) -> bool:
        try:
            self._memory_of(parameter, slice(0, 0) if parameter.shape else None)
        except ValueError:
            return False
        return True

    def _of_turn(self, turn: int) -> Sequence[_Slice[P]]:
        return self._turns[(turn - 1) % len(self._turns)]


def checksum_of(memory: Buffer, of: Checksum, begun: int = 0) -> int:
    """Returns the checksum of the bytes before, ``begun``, continued over ``memory``."""
    address, dtype, shape, _, _ = memory
    return of(begun, address, math.prod(shape) * dtype.itemsize)


def _planned(members: Sequence[tuple[str, P]]) -> list[list[_Slice[P]]]:
    """Returns the slices of each turn: one slice if there are fewer than half as many parameters as turns."""
    shapes = [tuple(parameter.shape) for _, parameter in members]
    most = max(_LEAST_ELEMENTS, 4 * sum(map(math.prod, shapes)) // TURNS)
    slices: list[_Slice[P]] = []
    for (name, parameter), shape in zip(members, shapes, strict=True):
        rows = max(1, most // max(1, math.prod(shape[1:])))
        if not shape:
            slices.append(_Slice(name, parameter, None))
        else:
            slices += [_Slice(name, parameter, slice(begin, begin + rows)) for begin in range(0, shape[0], rows)]
    each = max(1, -(-len(slices) // TURNS))
    return [slices[begin : begin + each] for begin in range(0, len(slices), each)]
