"""The allocator's bookkeeping: nothing overlaps, nothing is lost, neighbours join."""

from __future__ import annotations

import random

import pytest

from hvdlite.memory.free_list import FreeList


def test_what_is_given_back_is_taken_again() -> None:
    free_list = FreeList(100)
    assert [free_list.take(40, 1), free_list.take(60, 1), free_list.take(1, 1)] == [0, 40, None]
    assert free_list.around(40, 60) == (40, 100)
    free_list.give(40, 60)
    assert free_list.around(0, 40) == (0, 100)
    free_list.give(0, 40)
    assert free_list.take(100, 1) == 0


def test_a_block_joins_the_holes_on_both_of_its_sides() -> None:
    free_list = FreeList(30)
    for _ in range(3):
        free_list.take(10, 1)
    assert free_list.around(0, 10) == (0, 10)
    free_list.give(0, 10)
    free_list.give(20, 10)
    assert list(free_list.taken()) == [(10, 20)]
    assert free_list.around(10, 10) == (0, 30)
    free_list.give(10, 10)
    assert list(free_list.taken()) == []


def test_what_alignment_skips_stays_free() -> None:
    free_list = FreeList(4096)
    assert free_list.take(1, 1) == 0
    assert free_list.take(64, 1024) == 1024
    assert free_list.take(1023, 1) == 1
    assert list(free_list.taken()) == [(0, 1088)]


def test_an_empty_range_has_no_room() -> None:
    assert FreeList(0).take(1, 1) is None
    assert list(FreeList(0).taken()) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_random_program_agrees_with_a_map_of_bytes(seed: int) -> None:
    rng = random.Random(seed)
    size = 512
    free_list, used, blocks = FreeList(size), bytearray(size), []
    for _ in range(2000):
        if blocks and rng.random() < 0.5:
            begin, nbytes = blocks.pop(rng.randrange(len(blocks)))
            used[begin : begin + nbytes] = bytes(nbytes)
            hole = free_list.around(begin, nbytes)
            free_list.give(begin, nbytes)
            assert hole[0] <= begin < begin + nbytes <= hole[1]
            assert not any(used[slice(*hole)])
        else:
            nbytes, alignment = rng.randint(1, 40), rng.choice([1, 8, 64])
            at = free_list.take(nbytes, alignment)
            if at is None:
                starts = range(0, size - nbytes + 1, alignment)
                assert all(any(used[start : start + nbytes]) for start in starts)
            else:
                assert at % alignment == 0
                assert not any(used[at : at + nbytes])
                used[at : at + nbytes] = b"\1" * nbytes
                blocks.append((at, nbytes))
        stretches = list(free_list.taken())
        assert sum(end - begin for begin, end in stretches) == sum(used)
        assert all(all(used[begin:end]) for begin, end in stretches)
