"""A first-fit allocator of a range of bytes, which merges adjacent holes.

Holes are kept in the order of their addresses, so that allocations stay together at the beginning of the range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator


class FreeList:
    """The free bytes of ``[0, nbytes)``, at first all of it."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        # Hole i is [begins[i], ends[i]): not empty, and not next to another.
        self._begins = [0] if nbytes else []
        self._ends = [nbytes] if nbytes else []

    def take(self, nbytes: int, alignment: int) -> int | None:
        """Allocates ``nbytes`` and returns where they begin, a multiple of ``alignment``; None if no hole has room."""
        for index, (begin, end) in enumerate(zip(self._begins, self._ends, strict=True)):
            at = -(-begin // alignment) * alignment
            if at + nbytes <= end:
                self._replace(index, index + 1, (begin, at), (at + nbytes, end))
                return at
        return None

    def give(self, begin: int, nbytes: int) -> None:
        """Takes back what `take` gave."""
        first, last = self._neighbours(begin, begin + nbytes)
        self._replace(first, last, self.around(begin, nbytes))

    def around(self, begin: int, nbytes: int) -> tuple[int, int]:
        """The hole that freeing this block would leave."""
        end = begin + nbytes
        first, last = self._neighbours(begin, end)
        return min([begin, *self._begins[first:last]]), max([end, *self._ends[first:last]])

    def _neighbours(self, begin: int, end: int) -> tuple[int, int]:
        """The slice of the holes that end or begin where a block does."""
        index = bisect_left(self._begins, begin)
        return (
            index - (index > 0 and self._ends[index - 1] == begin),
            index + (index < len(self._begins) and self._begins[index] == end),
        )

    def taken(self) -> Iterator[tuple[int, int]]:
        """The beginning and the end of each stretch between holes."""
        for begin, end in zip([0, *self._ends], [*self._begins, self._nbytes], strict=True):
            if begin < end:
                yield begin, end

    def _replace(self, first: int, last: int, *holes: tuple[int, int]) -> None:
        kept = [hole for hole in holes if hole[0] < hole[1]]
        self._begins[first:last] = [begin for begin, _ in kept]
        self._ends[first:last] = [end for _, end in kept]
