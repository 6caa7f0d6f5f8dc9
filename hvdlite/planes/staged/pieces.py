"""Pieces of a collective, each of which fits a buffer in the memory of the host.

The bytes of each stream of spans are cut in proportion: piece ``k`` of ``n`` has the ``k``-th n-th of every stream. So
all streams end together, however long they are, and every rank cuts alike, because the lengths of all streams are the
same on all ranks. Small tensors share a piece, large ones go through in many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from hvdlite.tensors.buffer import Matrix, Spans, sliced

STEP: Final = 64
"""Cuts are at multiples of it, and so are pinned in a buffer. No element is longer."""

_LOST: Final = 2 * STEP  # for each stream: a cut may be a step late, and its end has to be rounded up
Copy = tuple[int, int, int]
"""An address to write, an address to read, and bytes."""


class Flow(NamedTuple):
    """Spans of a device that are read, written, or both; in ``in_place`` rows nothing has to be written."""

    spans: Spans
    is_read: bool
    is_written: bool
    keeps_in_place: bool = False

    @property
    def address(self) -> int:
        """Returns an address of the device; 0 if there is none."""
        return next((read if self.is_read else write for read, write, nbytes in self.spans.tolist() if nbytes), 0)


class Piece(NamedTuple):
    """What one buffer takes: copies ``down`` from the device, a call for what is there then, and copies ``up``."""

    down: Sequence[Copy]
    move: Callable[[], object]
    up: Sequence[Copy]


LayOut = Callable[[int], Piece]
"""Makes a piece for the buffer at an address."""
Move = Callable[[int, Sequence[Spans]], object]
"""Does the piece of this number. The spans, of one row each, are where it has the bytes of each flow."""


def room_for(nbytes: int, size: int) -> int:
    """Returns the bytes of a buffer for pieces of about ``nbytes`` of any collective of ``size`` ranks."""
    return max(nbytes, 4 * size * _LOST)  # an all-to-all has two flows for each rank; half is left for bytes


def count_of(nbytes: int, flows: int, room: int) -> int:
    """Returns how many pieces ``nbytes`` in so many flows need, each in ``room`` bytes."""
    return max(1, -(-nbytes // (room - flows * _LOST)))


def pieces(flows: Sequence[Flow], count: int, move: Move) -> Iterator[LayOut]:
    """Cuts ``flows`` into ``count`` pieces."""
    cut = [sliced(flow.spans, count, STEP) for flow in flows]
    for number in range(count):
        yield partial(_piece, flows, [slices[number] for slices in cut], partial(move, number))


def _piece(flows: Sequence[Flow], slices: Sequence[Spans], move: Callable[[Sequence[Spans]], object], at: int) -> Piece:
    down: list[Copy] = []
    up: list[Copy] = []
    pinned = []
    for flow, rows in zip(flows, slices, strict=True):
        begin = at
        for read, write, nbytes in rows.tolist():
            if flow.is_read and nbytes:
                down.append((at, read, nbytes))
            if flow.is_written and nbytes and not (flow.keeps_in_place and read == write):
                up.append((write, at, nbytes))
            at += nbytes
        pinned.append(np.array([(begin if flow.is_read else 0, begin, at - begin)], np.uint64))
        at += -at % STEP
    return Piece(down, partial(move, pinned), up)


def cut_of(matrix: Matrix, number: int, count: int) -> Matrix:
    """Returns the bytes of each cell in piece ``number`` of ``count``, as `sliced` cuts what they count."""

    def end(index: int) -> Matrix:
        if index == count:
            return matrix
        return matrix * np.uint64(index) // np.uint64(count * STEP) * np.uint64(STEP)

    return end(number + 1) - end(number)
