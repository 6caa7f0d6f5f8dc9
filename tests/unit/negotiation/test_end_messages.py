"""What users read about the end of a group."""

from __future__ import annotations

import pytest

from hvdlite.negotiation.end_messages import error_of, fate_of
from hvdlite.negotiation.messages import End, EndKind


@pytest.mark.parametrize(
    ("names", "shown"),
    [("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more"), ("abcdef", "a, b, c and 3 more")],
    ids=["one", "three", "four", "six"],
)
def test_a_rank_that_stalled_is_described_by_three_of_its_names(names: str, shown: str) -> None:
    missing = [(1, name) for name in names]
    end = End(EndKind.STALLED, 1, "b", "", 60.0, (*missing, (2, "of another rank")))
    assert fate_of(end) == f"stalled: it did not submit {shown} within 60 s"


def test_a_rank_that_merely_left_has_no_fate() -> None:
    assert [fate_of(End(kind, 1, "b", "it left")) for kind in (EndKind.LEFT, EndKind.REMOVED)] == ["", ""]


@pytest.mark.parametrize(
    ("kind", "fate", "error"),
    [
        (EndKind.LOST, "was lost: no answer", "rank 1 on b was lost: no answer"),
        (EndKind.GONE, "was lost: no answer", "rank 1 on b was lost: no answer"),
        (EndKind.FAILED, "failed: no answer", "rank 1 on b failed: no answer"),
    ],
)
def test_a_lost_or_failed_rank_is_named_with_the_cause(kind: EndKind, fate: str, error: str) -> None:
    end = End(kind, 1, "b", "no answer")
    assert fate_of(end) == fate
    assert str(error_of(end)).startswith(error)
