"""The allocator's bookkeeping: nothing overlaps, nothing is lost, neighbours join."""

from __future__ import annotations

import random

import pytest

from hvdlite.planes.shm.free_list import Holes


def test_what_is_given_back_is_taken_again() -> None:
    holes = Holes(100)
    assert [holes.take(40, 1), holes.take(60, 1), holes.take(1, 1)] == [0, 40, None]
    assert holes.around(40, 60) == (40, 100)
    holes.give(40, 60)
    assert holes.around(0, 40) == (0, 100)
    holes.give(0, 40)
    assert holes.take(100, 1) == 0


def test_a_block_joins_the_holes_on_both_of_its_sides() -> None:
    holes = Holes(30)
    for _ in range(3):
        holes.take(10, 1)
    assert holes.around(0, 10) == (0, 10)
    holes.give(0, 10)
    holes.give(20, 10)
    assert list(holes.taken()) == [(10, 20)]
    assert holes.around(10, 10) == (0, 30)
    holes.give(10, 10)
    assert list(holes.taken()) == []


def test_what_alignment_skips_stays_free() -> None:
    holes = Holes(4096)
    assert holes.take(1, 1) == 0
    assert holes.take(64, 1024) == 1024
    assert holes.take(1023, 1) == 1
    assert list(holes.taken()) == [(0, 1088)]


def test_an_empty_range_has_no_room() -> None:
    assert Holes(0).take(1, 1) is None
    assert list(Holes(0).taken()) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_random_program_agrees_with_a_map_of_bytes(seed: int) -> None:
    rng = random.Random(seed)
    size = 512
    holes, used, blocks = Holes(size), bytearray(size), []
    for _ in range(2000):
        if blocks and rng.random() < 0.5:
            begin, nbytes = blocks.pop(rng.randrange(len(blocks)))
            used[begin : begin + nbytes] = bytes(nbytes)
            hole = holes.around(begin, nbytes)
            holes.give(begin, nbytes)
            assert hole[0] <= begin < begin + nbytes <= hole[1]
            assert not any(used[slice(*hole)])
        else:
            nbytes, alignment = rng.randint(1, 40), rng.choice([1, 8, 64])
            at = holes.take(nbytes, alignment)
            if at is None:
                starts = range(0, size - nbytes + 1, alignment)
                assert all(any(used[start : start + nbytes]) for start in starts)
            else:
                assert at % alignment == 0
                assert not any(used[at : at + nbytes])
                used[at : at + nbytes] = b"\1" * nbytes
                blocks.append((at, nbytes))
        stretches = list(holes.taken())
        assert sum(end - begin for begin, end in stretches) == sum(used)
        assert all(all(used[begin:end]) for begin, end in stretches)
