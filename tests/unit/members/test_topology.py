"""Placement: numbers within and across hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.errors import BadHostSpec
from hvdlite.members.topology import Placement, group, place


def test_one_host_counts_local_ranks_up() -> None:
    assert place([("localhost", 4)], 2) == (
        Placement(rank=0, host="localhost", local_rank=0, local_size=2, cross_rank=0, cross_size=1),
        Placement(rank=1, host="localhost", local_rank=1, local_size=2, cross_rank=0, cross_size=1),
    )


def test_unequal_hosts_have_a_cross_size_per_local_rank() -> None:
    placements = place([("a", 3), ("b", 1)], 4)
    assert [(p.host, p.local_rank, p.local_size) for p in placements] == [
        ("a", 0, 3),
        ("a", 1, 3),
        ("a", 2, 3),
        ("b", 0, 1),
    ]
    assert [(p.cross_rank, p.cross_size) for p in placements] == [(0, 2), (0, 1), (0, 1), (1, 2)]


def test_hosts_fill_up_in_the_order_given() -> None:
    assert [p.host for p in place([("b", 2), ("a", 2)], 3)] == ["b", "b", "a"]


def test_a_host_listed_twice_is_one_host() -> None:
    placements = place([("a", 1), ("b", 1), ("a", 1)], 3)
    assert [(p.host, p.local_rank, p.local_size) for p in placements] == [("a", 0, 2), ("b", 0, 1), ("a", 1, 2)]
    assert [(p.cross_rank, p.cross_size) for p in placements] == [(0, 2), (1, 2), (0, 1)]


def test_ranks_placed_in_turn_count_up_on_their_own_host() -> None:
    placements = group("abab")
    assert [(p.local_rank, p.local_size) for p in placements] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [(p.cross_rank, p.cross_size) for p in placements] == [(0, 2), (1, 2), (0, 2), (1, 2)]


def test_cross_ranks_skip_hosts_that_have_no_such_local_rank() -> None:
    placements = group("abbcc")
    assert [(p.host, p.local_rank) for p in placements] == [("a", 0), ("b", 0), ("b", 1), ("c", 0), ("c", 1)]
    assert [(p.cross_rank, p.cross_size) for p in placements] == [(0, 3), (1, 3), (0, 2), (2, 3), (1, 2)]


def test_a_host_without_slots_gets_no_rank() -> None:
    assert [p.host for p in place([("a", 0), ("b", 1)], 1)] == ["b"]


def test_too_few_slots_names_both_numbers() -> None:
    with pytest.raises(BadHostSpec, match=r"5 ranks do not fit into the 4 slots of a:3,b:1"):
        place([("a", 3), ("b", 1)], 5)


@pytest.mark.parametrize("size", [0, -1, 99_999_999_999])
def test_a_job_has_a_number_of_ranks_that_can_be(size: int) -> None:
    with pytest.raises(BadHostSpec, match="1 to 65536 ranks"):
        place([("a", 1 << 40)], size)


def test_no_ranks_no_placements() -> None:
    assert group([]) == ()


@given(st.lists(st.sampled_from("abcd"), max_size=30))
def test_coordinates_are_unique_and_dense(host_ids: list[str]) -> None:
    placements = group(host_ids)
    assert [p.rank for p in placements] == list(range(len(host_ids)))
    assert [p.host for p in placements] == host_ids
    for axis, size in (("host", "local"), ("local_rank", "cross")):
        members: dict[object, list[Placement]] = {}
        for placement in placements:
            members.setdefault(getattr(placement, axis), []).append(placement)
        for line in members.values():
            assert sorted(getattr(p, f"{size}_rank") for p in line) == list(range(len(line)))
            assert {getattr(p, f"{size}_size") for p in line} == {len(line)}
