"""Several pieces of a GPU's memory as one, for calls of NCCL that take one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hvdlite.cuda.memory import DeviceMemory, copy
from hvdlite.cuda.streams import Stream
from hvdlite.tensors.buffer import Spans

Piece = tuple[int, int]
"""An address and a number of bytes."""


class Pack:
    """``pieces`` in one piece of memory: themselves if they are one, else memory of its own in ``stream``."""

    def __init__(self, stream: Stream, pieces: Iterable[Piece]) -> None:
        self._stream = stream
        self._pieces = list(_merged(pieces))
        self.nbytes = sum(nbytes for _, nbytes in self._pieces)
        self._own = DeviceMemory(stream, self.nbytes) if len(self._pieces) > 1 else None
        first = self._pieces[0][0] if self._pieces else 0
        self.address = self._own.address if self._own is not None else first

    def gather(self) -> None:
        """Copies the pieces into the pack, in the stream."""
        for piece, part, nbytes in self._parts():
            copy(part, piece, nbytes, self._stream)

    def scatter(self) -> None:
        """Copies the pack to the pieces, in the stream."""
        for piece, part, nbytes in self._parts():
            copy(piece, part, nbytes, self._stream)

    def close(self) -> None:
        """Frees the pack after all that the stream has been given until now. May be called twice."""
        if self._own is not None:
            self._own.close()

    def _parts(self) -> Iterator[tuple[int, int, int]]:
        """Each piece with its place in the pack, if that has memory of its own."""
        if self._own is not None:
            part = self.address
            for piece, nbytes in self._pieces:
                yield piece, part, nbytes
                part += nbytes


def is_even(of_ranks: Sequence[Spans]) -> bool:
    """True if each rank has the same bytes row by row, and some in each: so on one rank, so on all."""
    lengths = of_ranks[0][:, 2]
    return bool(lengths.all()) and all(np.array_equal(spans[:, 2], lengths) for spans in of_ranks)


def across(of_ranks: Sequence[Spans], column: int) -> list[list[Piece]]:
    """For each row the pieces of all ranks, in their order: addresses from ``column``, to read or to write."""
    lists = [spans.tolist() for spans in of_ranks]
    return [[(row[column], row[2]) for row in rows] for rows in zip(*lists, strict=True)]


def _merged(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same bytes in as few pieces as possible, without empty ones."""
    begin = end = 0
    for address, nbytes in pieces:
        if not nbytes:
            continue
        if address != end:
            if end > begin:
                yield begin, end - begin
            begin = address
        end = address + nbytes
    if end > begin:
        yield begin, end - begin
