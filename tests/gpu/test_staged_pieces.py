"""How collectives over GPUs are cut into pieces for buffers of the host: with numbers for addresses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from hvdlite.planes.staged.pieces import STEP, Flow, count_of, cut_of, pieces, room_for
from hvdlite.tensors.buffer import Spans

READS, WRITES, BUFFER = 1 << 40, 2 << 40, 3 << 40


def _spans(begin: int, lengths: Sequence[int]) -> Spans:
    """Rows beside each other, read and written at different places."""
    begins = begin + np.cumsum([0, *lengths])[:-1]
    return np.array([(READS + at, WRITES + at, n) for at, n in zip(begins, lengths, strict=True)], np.uint64).reshape(
        -1, 3
    )


@pytest.mark.parametrize("size", [1, 2, 7, 40])
@pytest.mark.parametrize("seed", range(5))
def test_every_byte_goes_once_through_a_place_of_its_own(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    room = room_for(4096, size)
    lengths = [rng.integers(0, 10 ** rng.integers(1, 6), rng.integers(0, 4)).tolist() for _ in range(2 * size)]
    flows = [
        Flow(_spans(index << 24, each), is_read=index % 3 < 2, is_written=index % 3 > 0)
        for index, each in enumerate(lengths)
    ]
    total = sum(map(sum, lengths))
    count = count_of(total, len(flows), room)
    read, written, calls = [], [], []
    for lay_out in pieces(flows, count, lambda number, pinned: calls.append((number, pinned))):
        piece = lay_out(BUFFER)
        piece.move()
        held = calls[-1][1]
        assert calls[-1][0] == len(calls) - 1
        for (_, at, nbytes), flow in ((spans[0].tolist(), flow) for spans, flow in zip(held, flows, strict=True)):
            assert at % STEP == 0
            assert BUFFER <= at <= at + nbytes <= BUFFER + room
            assert [copy for copy in piece.down if at <= copy[0] < at + nbytes] == [] or flow.is_read
        places = sorted((spans[0, 1], spans[0, 2]) for spans in held)
        assert all(at + nbytes <= after for (at, nbytes), (after, _) in itertools.pairwise(places))
        read += [(source - READS, nbytes) for _, source, nbytes in piece.down]
        written += [(target - WRITES, nbytes) for target, _, nbytes in piece.up]
    assert len(calls) == count
    for copies, takes in ((read, lambda index: index % 3 < 2), (written, lambda index: index % 3 > 0)):
        expected = sum(sum(each) for index, each in enumerate(lengths) if takes(index))
        assert sum(nbytes for _, nbytes in copies) == expected
        ends = sorted((at, at + nbytes) for at, nbytes in copies)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


def test_a_matrix_is_cut_as_the_bytes_that_it_counts() -> None:
    matrix = np.array([[0, 63, 64], [1, 65, 4096], [100_000, 127, 1 << 40]], np.uint64)
    count = 9
    flows = [Flow(_spans(0, [int(cell)]), is_read=True, is_written=False) for cell in matrix.ravel()]
    cut: list[list[int]] = []

    def move(number: int, pinned: Sequence[Spans]) -> None:
        cut.append([int(spans[0, 2]) for spans in pinned])
        assert cut[-1] == cut_of(matrix, number, count).ravel().tolist()

    for lay_out in pieces(flows, count, move):
        lay_out(BUFFER).move()
    assert np.array_equal(np.sum(cut, axis=0), matrix.ravel())


def test_what_is_in_place_on_the_rank_that_has_it_is_not_copied_back() -> None:
    spans = np.array([(READS, READS, 100), (READS + 100, WRITES, 50)], np.uint64)
    for keeps, copied in ((True, [WRITES]), (False, [READS, WRITES])):
        (lay_out,) = pieces([Flow(spans, True, True, keeps)], 1, lambda number, pinned: None)
        assert [target for target, _, _ in lay_out(BUFFER).up] == copied
