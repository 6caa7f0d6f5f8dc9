"""Ranks as ranges."""

from __future__ import annotations

import pytest

from hvdlite.members.ranges import as_ranges, named, shortened


def test_ranges() -> None:
    assert as_ranges((7, 0, 1, 2, 5, 4, 4)) == [(0, 2), (4, 5), (7, 7)]


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([1, 0], "ranks 0, 1"), ([7, 0, 2, 1], "ranks 0-2, 7"), ([], "ranks ")]
)
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert named(ranks) == text


def test_of_many_ranges_the_ranks_that_are_not_shown_are_counted() -> None:
    ranks = [rank for rank in range(400) if rank % 10]
    assert shortened(ranks).startswith("1-9, 11-19, ")
    assert shortened(ranks).endswith(", 311-319 and 72 more")
