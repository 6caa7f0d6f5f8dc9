"""Which parameters have their turn when, and what ranks make of each other's checksums."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvdlite.ops.memory import _zlib_crc32
from hvdlite.tensors.buffer import of_array
from hvdlite.training.slices import TURNS, MemoryOf, Slices


class Parameter:
    """An array, which is equal only to itself."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, np.float32)
        self.shape = self.values.shape


def _memory_of(parameter: Parameter, rows: Any) -> Any:
    return of_array(parameter.values[rows])


def slices_of(
    shapes: list[tuple[int, ...]], rank: int = 0, size: int = 2, memory_of: MemoryOf[Parameter] = _memory_of
) -> Slices[Parameter]:
    members = [(f"p{index}", Parameter(np.zeros(shape))) for index, shape in enumerate(shapes)]
    group: Any = SimpleNamespace(rank=rank, size=size, ranks=tuple(range(10, 10 + size)))
    return Slices(members, group, memory_of)


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [()],
        [(0, 3), (5,)],
        [(3, 4)] * 30,
        [(2,)] * 2500,
        [(1_000_000,), (2, 500_000), (999_999, 1)],
        [(100, 7)] * 999 + [(50_000, 20)],
    ],
    ids=["none", "scalar", "empty", "few", "many", "large", "mixed"],
)
def test_every_row_has_one_turn_within_the_promised_steps(shapes: list[tuple[int, ...]]) -> None:
    slices = slices_of(shapes)
    assert len(slices._turns) <= TURNS
    seen = {f"p{index}": np.zeros(shape, np.int8) for index, shape in enumerate(shapes)}
    for turn in slices._turns:
        for each in turn:
            seen[each.name][each.rows] += 1
    assert all((counts == 1).all() for counts in seen.values())
    if len(shapes) <= TURNS // 2:
        assert all(len(turn) == 1 for turn in slices._turns)  # so that the parameter is known by name


def total(vectors: list[Any], scale: float) -> Any:
    """What an all-reduce with a scale before and after makes of them."""
    scaled = [vector.copy() * np.float32(scale) for vector in vectors]
    return np.sum(scaled, axis=0, dtype=np.float32) * np.float32(1 / scale / len(vectors))


@pytest.mark.parametrize("scale", [1.0, 1 / 3, 7.0, 1e-20])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_difference_is_found_whatever_the_scale(size: int, scale: float) -> None:
    ranks = [slices_of([(4,), (3,)], rank, size) for rank in range(size)]
    last = ranks[-1]._turns[1][0].parameter
    for step in range(1, 5):
        if step == 3:
            last.values[2] = np.float32(1e-30)
        sum_of_all = total([each.read(_zlib_crc32).copy() for each in ranks], scale)
        found = [each.compare(sum_of_all, step) for each in ranks]
        assert all(each == found[0] for each in found)
        assert (found[0] is not None) == (step == 4)
    assert found[0].reporter == 0
    assert f"in step 4, 'p1' of rank {9 + size} is not that of rank 10" in found[0].text


def test_halves_of_a_checksum_that_differ_in_one_bit_stay_different() -> None:
    for bit in range(32):
        ranks = [slices_of([(4,)], rank, 3) for rank in range(3)]
        checksums = [0xFFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFF ^ 1 << bit]
        vectors = [
            each.read(lambda *_, found=found: found).copy() for each, found in zip(ranks, checksums, strict=True)
        ]
        assert ranks[0].compare(total(vectors, 1 / 3), 1) is not None, bit


def test_ranks_at_other_turns_and_joined_ones_are_not_compared() -> None:
    ranks = [slices_of([(4,), (3,)], rank, 3) for rank in range(3)]
    ranks[1]._turn = 7
    vectors = [each.read(lambda *_, rank=rank: rank).copy() for rank, each in enumerate(ranks)]
    vectors[2][:] = 0  # it has joined
    assert [each.compare(total(vectors, 1.0), 1) for each in ranks[:2]] == [None, None]
    assert [each._turn for each in ranks[:2]] == [8, 8]


def test_turns_begin_again_before_a_float_cannot_count_them() -> None:
    slices = slices_of([(4,)])
    slices._turn = 1 << 20
    assert slices.read(_zlib_crc32)[0] == 1
    slices._turn = (1 << 20) - 2
    assert [slices.read(_zlib_crc32)[0] for _ in range(2)] == [(1 << 20) - 1, 1 << 20]


def test_what_cannot_be_read_is_left_out() -> None:
    slices = slices_of([(4,)] * 3)
    slices._memory_of = lambda parameter, rows: None
    assert slices.read(_zlib_crc32)[1:3].tolist() == [0, 0]
    slices._memory_of = _refuse
    assert slices.read(_zlib_crc32)[1:3].tolist() == [0, 0]
    assert zlib.crc32(b"") == 0
    assert slices_of([(4,), ()], memory_of=_refuse).read(_zlib_crc32) is None  # no rank sends anything


def _refuse(parameter: Parameter, rows: Any) -> Any:
    raise ValueError("it cannot be compared")
