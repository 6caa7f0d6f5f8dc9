"""The properties of a membership; nothing derived from one is that of another group or epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvdlite.members.membership import Membership
from tests.harness.members import member


def test_a_member_knows_its_host_and_who_leads_each() -> None:
    fourth = member(3, "abab")
    assert (fourth.size, fourth.number, fourth.on_this_host, fourth.is_one_host) == (4, 3, [1, 3], False)
    assert fourth.by_leader == {0: [0, 2], 1: [1, 3]}
    assert fourth.leader_of == [0, 1, 2, 1]  # the root hears of rank 2, on its own host, from itself
    assert member(1, "aaa").is_one_host


def test_a_part_has_numbers_of_its_own_and_those_of_the_job() -> None:
    part = member(3, "abab").among([1, 3], "odd")
    assert (part.rank, part.ranks, part.number, part.is_one_host) == (1, (1, 3), 3, True)
    inner = part.among([1], "alone")
    assert (inner.rank, inner.ranks, inner.number, inner.size) == (0, (3,), 3, 1)


def _derived(of: Membership) -> list[object]:
    return [of.session, of.key_for("control"), of.key_for("ring"), of.among([0, 1], "set 0").key]


@pytest.mark.parametrize(
    "other",
    [
        replace(member(0, "aab"), epoch=1),
        replace(member(0, "aab"), key=bytes(32)),
        member(0, "aab").among([0, 1, 2], "set 0"),
        member(0, "aab").among([0, 1, 2], "set 1"),
    ],
    ids=["epoch", "key", "part", "other part"],
)
def test_another_group_has_other_keys_and_another_number(other: Membership) -> None:
    derived = _derived(member(0, "aab")) + _derived(other)
    assert len(set(derived)) == len(derived)


def test_all_members_derive_the_same_and_show_no_key() -> None:
    members = [member(rank, "aab") for rank in range(2)]
    assert len({str(_derived(each)) for each in members}) == 1
    assert str(members[0].key) not in repr(members[0])
