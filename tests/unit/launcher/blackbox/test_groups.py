"""What the boxes of all ranks say together: which batches run, and which ranks lack what is waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hvdlite.blackbox.format import Record
from hvdlite.launcher.blackbox.groups import Group, Member

_X, _Y = (0, "x"), (2, "y")


def _member(
    *numbers: int,
    done_at: float = 50.0,
    at: float = 100.0,
    in_flight: Sequence[tuple[int, str]] = (),
    knows: bool = True,
    forgot_at: float = -math.inf,
) -> Member:
    """A rank whose host's clock shows 1,000 s less than that of the epoch, and that has finished these batches."""
    times = (0.0, 0.0, 0.0, done_at - 1000.0, 0.0)
    done = {number: Record(number, 0, number, 1, 8, *times, -1, 0.0, 0, "w") for number in numbers}
    return Member(at, -1000.0, done, list(in_flight), knows, forgot_at)


def _group(*members: Member) -> Group:
    return Group(list(range(len(members))), dict(enumerate(members)))


def _numbers(group: Group) -> list[int]:
    return [number for number, _ in group.batches]


def test_batches_count_from_where_all_remember_them() -> None:
    assert _numbers(_group(_member(*range(1, 9)), _member(*range(4, 9)), _member())) == [4, 5, 6, 7, 8]
    assert _numbers(_group(_member(), _member())) == []


@pytest.mark.parametrize(("forgot_at", "found"), [(-math.inf, [1, 2]), (30.0, [1, 2]), (60.0, [])])
def test_a_rank_that_has_forgotten_all_batches_of_a_group_lacks_none(forgot_at: float, found: list[int]) -> None:
    group = _group(_member(1, 2), _member(forgot_at=forgot_at))
    assert _numbers(group) == found


@pytest.mark.parametrize(("at", "found"), [(53.0, [1, 2, 3]), (50.5, [1, 2])])
def test_what_another_has_long_finished_runs_on_the_others(at: float, found: list[int]) -> None:
    """Unless a box was read just when that ended."""
    group = _group(_member(1, 2, 3), _member(1, 2, at=at), _member(1, 2, 3))
    assert _numbers(group) == found
    assert group.waiting == []


def test_the_ranks_that_have_submitted_what_others_lack() -> None:
    has_x, has_both, has_none = _member(1, in_flight=[_X]), _member(1, in_flight=[_X, _Y]), _member(1)
    assert _group(has_x, has_both, has_none).waiting == [(_X, [0, 1]), (_Y, [1])]
    assert _group(has_x, has_x).waiting == [(_X, [0, 1])]


def test_of_ranks_whose_tensors_are_not_all_known_only_what_is_sure_is_said() -> None:
    has_x, has_none, unknown = _member(1, in_flight=[_X]), _member(1), _member(1, knows=False)
    assert _group(has_x, unknown).waiting == [(_X, [0])]  # nobody else keeps it from running
    assert _group(has_x, has_none, unknown).waiting == []
