"""Ranks as ranges of numbers, for people, and for messages that must stay short."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST: Final = 32  # ranges that are shown


def as_ranges(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each range."""
    ranges: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], rank
        else:
            ranges.append((rank, rank))
    return ranges


def shortened(ranks: Iterable[int]) -> str:
    """``0-2, 7``; of very many ranges the first, and how many ranks the others have."""
    ranges = as_ranges(ranks)
    shown = [_text(first, last) for first, last in ranges[:_MOST]]
    left_out = sum(last - first + 1 for first, last in ranges[_MOST:])
    return ", ".join(shown) + (f" and {left_out} more" if left_out else "")


def named(ranks: Iterable[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 7``."""
    numbers = set(ranks)
    return f"rank{'s' if len(numbers) != 1 else ''} {shortened(numbers)}"


def _text(first: int, last: int) -> str:
    return f"{first}-{last}" if last > first + 1 else ", ".join(map(str, range(first, last + 1)))
