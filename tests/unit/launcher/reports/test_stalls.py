"""The facts of a stall, whatever another machine sends for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from hvdlite.launcher.reports.stalls import read_stall as read
from hvdlite.negotiation.delays.circle import Wait
from hvdlite.negotiation.delays.stall import StallWatch
from tests.unit.launcher.reports.test_stacks import ANY_JSON


@given(ANY_JSON)
def test_facts_are_those_of_a_stall_or_none(facts: object) -> None:
    stall = read(facts if isinstance(facts, dict) else {"waits": facts}, 4)
    assert stall is None or all(0 <= rank < 4 for rank in stall.missing)


@pytest.mark.parametrize(
    "facts",
    [
        {"seconds": 10, "waits": [[["a"], 1, [[0, 10**9]], []]], "circle": []},
        {"seconds": 10, "waits": [[["a"], 1, [[2, 1]], []]], "circle": []},
        {"seconds": 10, "waits": [[["a"], 1, [], [[0, 0]]]], "circle": []},
        {"seconds": 10, "waits": [[["a"], 10**4000, [[1, 1]], []]], "circle": []},
        {"seconds": 10, "waits": [[["a"], 1, [[1, 1]], []]] * 9, "circle": []},
        {"seconds": 10, "waits": [[["a"] * 7, 7, [[1, 1]], []]], "circle": []},
        {"seconds": 10, "waits": [[["a"], 1, [[1, 1]] * 65, []]], "circle": []},
        {"seconds": 10, "waits": [[["a"], 1, [[1, 1]], []]], "circle": [[0, "a"]] * 33},
        {"seconds": 10, "waits": [[["a"], 1, [[1, 1]], []]]},
        {"seconds": 10, "waits": [[[], 1, [[0, 0]], []]], "circle": []},
        {"seconds": 10**400, "waits": [], "circle": []},
        {"seconds": float("nan"), "waits": [], "circle": []},
        {"seconds": 10, "waits": [[["a"], 1, [[1, 1]], []]], "circle": [[9, "a"]]},
    ],
)
def test_facts_that_cannot_be_true_are_refused(facts: dict[str, Any]) -> None:
    assert read({"seconds": 10, "waits": [[["a"], 1, [[0, 0]], []]], "circle": []}, 4) is not None
    assert read(facts, 4) is None


def test_the_facts_of_the_watch_are_understood() -> None:
    watch = StallWatch(warn_s=10, fatal_s=0)
    waiting = {"a": Wait((1, 2, 3), (0,)), "b": Wait((0,), (1, 2, 3)), "a2": Wait((1, 2, 3), (0,))}
    watch.check(waiting, 0.0)
    stall = read(json.loads(json.dumps(watch.check(waiting, 10.0).facts._asdict())), 4)
    assert stall is not None
    assert [(part.names, part.count, part.ranks, part.present) for part in stall.parts] == [
        (("a", "a2"), 2, (1, 2, 3), (0,)),
        (("b",), 1, (0,), (1, 2, 3)),
    ]
    assert stall.circle == ((0, "a"), (1, "b"))
    assert stall.missing == [0, 1, 2, 3]
