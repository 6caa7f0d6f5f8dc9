"""Several pieces of a GPU's memory as one, for calls of NCCL that take one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hvdlite.planes.nccl.mover import Mover
from hvdlite.planes.nccl.scratch import KEPT_BYTES, LINE, Scratch
from hvdlite.tensors.buffer import Spans
from hvdlite.tensors.dtypes import ElementType

Piece = tuple[int, int]
"""An address and a number of bytes."""

# Guesses until ranks with a GPU each are measured. A bench may change them, on all ranks alike: with TENSOR_US = 0
# nothing is packed.
TENSOR_US = 3.0
"""What each further tensor of a group costs: its call, and NCCL's work for it on the host and on the GPU."""
PACK_US = 50.0
"""What packing costs however little it packs: most of it is Python, for two launches."""
PACKED_BYTES_PER_US = 250_000.0
"""What it packs and unpacks meanwhile, both of which read and write, at a total of 1 TB/s."""


def is_worth_packing(lists: Sequence[Spans]) -> bool:
    """True if spans, or equal spans of each rank, move sooner in one piece than with a call for each.

    All ranks must come to the same result, so it depends only on the bytes of the spans, which are the same on all.
    """
    if len(lists) > 1 and not is_even(lists):
        return False
    count, nbytes = int(np.count_nonzero(lists[0][:, 2])), len(lists) * int(lists[0][:, 2].sum())
    return nbytes <= KEPT_BYTES and count * TENSOR_US > PACK_US + nbytes / PACKED_BYTES_PER_US


def packed_bytes(spans: Spans) -> int:
    """Returns how many bytes `in_one_piece` needs for ``spans``."""
    return int(_lengths(spans).sum())


def in_one_piece(spans: Spans, address: int) -> tuple[Spans, Spans]:
    """Returns spans that copy what ``spans`` read to ``address``, and from there to where they write.

    Each begins at a multiple of `LINE`, and between them is what was there before; the layout is the same on all ranks.
    """
    lengths = _lengths(spans)
    into, out = spans.copy(), spans.copy()
    into[:, 1] = out[:, 0] = (np.cumsum(lengths) - lengths + address).astype(np.uint64)
    return into, out


def _lengths(spans: Spans) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = -(-spans[:, 2].astype(np.int64) // LINE) * LINE
    return lengths


class Pack:
    """``pieces`` as one piece of memory: their own if they are adjacent, else a part of a `Scratch`, given by `place`.

    With ``is_copy`` a single piece gets a part of the scratch, too.
    """

    def __init__(self, pieces: Iterable[Piece], is_copy: bool = False) -> None:
        self._pieces = list(_merged(pieces))
        self.nbytes = sum(nbytes for _, nbytes in self._pieces)
        self.is_copy = len(self._pieces) > 1 or (is_copy and self.nbytes > 0)
        self.address = self._pieces[0][0] if self._pieces and not self.is_copy else 0

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yields each piece's address, the address of its place in the pack, and its bytes; nothing without a copy."""
        if self.is_copy:
            part = self.address
            for piece, nbytes in self._pieces:
                yield piece, part, nbytes
                part += nbytes


def place(packs: Sequence[Pack], scratch: Scratch) -> None:
    """Gives each of ``packs`` that needs one a part of the scratch."""
    needy = [pack for pack in packs if pack.is_copy]
    if needy:
        for pack, address in zip(needy, scratch.take([pack.nbytes for pack in needy]), strict=True):
            pack.address = address


def gather(packs: Iterable[Pack], mover: Mover, dtype: ElementType | None = None, factor: float = 1.0) -> None:
    """Copies the pieces to their packs, elements of ``dtype`` times ``factor``."""
    mover.move(_array(span for pack in packs for span in pack.spans()), dtype, factor)


def scatter(packs: Iterable[Pack], mover: Mover) -> None:
    """Copies the packs to their pieces."""
    mover.move(_array((part, piece, nbytes) for pack in packs for piece, part, nbytes in pack.spans()))


def _array(rows: Iterable[tuple[int, int, int]]) -> Spans:
    return np.array(list(rows), np.uint64).reshape(-1, 3)


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
