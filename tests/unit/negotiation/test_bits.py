"""Sets of bits: as long as the largest number in them, in either direction."""

from __future__ import annotations

import random

import pytest

from hvdlite.negotiation.bits import members, membership, set_of


@pytest.mark.parametrize("numbers", [[], [0], [7], [8], [20_000], [3, 1, 2], [0, 63, 64, 16_383]])
def test_a_set_has_the_bits_of_its_members(numbers: list[int]) -> None:
    assert set_of(numbers) == sum(1 << number for number in numbers)


def test_a_set_gives_back_its_members_in_order() -> None:
    numbers = random.Random(5).sample(range(16_384), 5000)
    assert members(set_of(numbers)) == sorted(numbers)


def test_the_membership_of_numbers_in_several_sets() -> None:
    sets = [set_of([0, 3, 70]), 0, set_of([3, 500])]
    assert membership(sets, [0, 3, 70]) == [bytes([1, 0, 0]), bytes([1, 0, 1]), bytes([1, 0, 0])]
    assert membership(sets, []) == []
