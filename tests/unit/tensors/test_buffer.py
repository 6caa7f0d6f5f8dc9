"""Spans cut into slices."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.tensors.buffer import Spans, in_place, sliced

LENGTHS = st.lists(st.integers(0, 300), max_size=12)


def spans_of(lengths: list[int]) -> Spans:
    """Rows far apart from each other, so that no two bytes have one address."""
    rows = [(1000 * (2 * row + 1), 1000 * (2 * row + 2), nbytes) for row, nbytes in enumerate(lengths)]
    return np.array(rows, np.uint64).reshape(-1, 3)


def byte_pairs(spans: Spans) -> list[tuple[int, int]]:
    """(address to read, address to write) of each byte."""
    return [(read + i, write + i) for read, write, nbytes in spans.tolist() for i in range(nbytes)]


@given(LENGTHS, st.integers(1, 5), st.sampled_from([1, 4, 64]))
def test_slices_are_the_spans_cut_at_steps(lengths: list[int], count: int, step: int) -> None:
    spans = spans_of(lengths)
    before = spans.copy()
    slices = sliced(spans, count, step)
    assert len(slices) == count
    assert [pair for rows in slices for pair in byte_pairs(rows)] == byte_pairs(spans)
    for rows in slices[:-1]:
        assert rows[:, 2].sum() % step == 0
    for rows in slices:
        assert abs(int(rows[:, 2].sum()) - sum(lengths) / count) < 2 * step if count > 1 else True
        assert rows.flags.c_contiguous
    assert (spans == before).all()


@given(LENGTHS)
def test_in_place_reads_what_was_written(lengths: list[int]) -> None:
    spans = in_place(spans_of(lengths))
    assert (spans[:, 0] == spans[:, 1]).all()
    assert spans.flags.c_contiguous
    assert [write for _, write in byte_pairs(spans)] == [write for _, write in byte_pairs(spans_of(lengths))]
