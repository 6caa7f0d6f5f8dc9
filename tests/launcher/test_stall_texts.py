"""Texts of a stall, of whatever comes from other machines."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.blackbox.format import AWAKE_AT, HEAD, MARK, NBYTES, NUMBER, OFFER, OFFER_AT, Finding, Phase
from hvdlite.launcher.agent.inspection.unresponsive import Unresponsive
from hvdlite.launcher.agents.link import AgentLink, Question
from hvdlite.launcher.reports import reports as module
from hvdlite.launcher.reports.reports import Reports
from hvdlite.launcher.reports.stacks import Looked, as_lines, looked
from hvdlite.launcher.reports.stalls import read_stall as read
from hvdlite.launcher.screen.screen import Screen
from hvdlite.negotiation.delays.circle import Wait
from hvdlite.negotiation.delays.stall import StallWatch

_THREAD = {"name": "MainThread", "is_main": True, "state": "S", "syscall": "futex", "wchan": "futex_wait"}
_CALLS = [["/usr/lib/python3.11/threading.py", 3, "wait"], ["/data/job/train.py", 7, "step"]]


def _looked(rank: int, **fields: Any) -> Looked:
    return looked(rank, "node7", {"pid": 4711, "threads": [{**_THREAD, "calls": _CALLS}], **fields})


def test_equal_stacks_are_one_although_their_states_differ() -> None:
    running = {"threads": [{**_THREAD, "calls": _CALLS, "state": "R"}]}
    assert list(as_lines([_looked(0), _looked(1, **running), _looked(2), _looked(4)])) == [
        "ranks 0-2, 4: the main thread sleeps in futex (futex_wait) (ranks 0, 2, 4), runs (rank 1)",
        '  File "/usr/lib/python3.11/threading.py", line 3, in wait',
        '  File "/data/job/train.py", line 7, in step',
    ]


def test_a_state_of_another_moment_than_the_stack_is_no_state_of_it() -> None:
    for fields, does in {
        ("moved", "awake"): "goes on, and was here for a moment",
        ("awake",): "sleeps again and again in futex (futex_wait)",
        (): "sleeps in futex (futex_wait)",
    }.items():
        thread = {**_THREAD, "calls": _CALLS, **dict.fromkeys(fields, True)}
        assert next(as_lines([_looked(0, threads=[thread])])) == f"rank 0: the main thread {does}"


def test_what_is_special_about_a_process_comes_first() -> None:
    lines = list(as_lines([_looked(3, tracer="gdb (process 9)", reads_stdin=True, way="signal")]))
    assert lines[:3] == [
        "rank 3 on node7, process 4711, is traced by gdb (process 9)",
        "rank 3 on node7, process 4711, waits for input: it reads stdin",
        "rank 3 on node7, process 4711, holds the GIL in native code: no Python of it runs",
    ]
    starved = next(as_lines([_looked(3, way="signal", is_starved=True)]))
    assert starved.endswith(", gets no processor, or waits for its memory to be read from a disk: no Python of it runs")


def test_the_place_in_the_users_code_is_not_in_a_library() -> None:
    place = _looked(0).place
    assert place is not None
    assert (place.file, place.line, place.function) == ("/data/job/train.py", 7, "step")
    ours = _looked(0, ours="/data/job/train").place
    assert ours is not None  # nothing is left, so the outermost call stands for it
    assert ours.line == 7


_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                "pid tracer why way children threads name is_main state syscall wchan calls ours command waits names "
                "count missing present circle seconds".split()
            ),
            inner,
            max_size=8,
        )
    ),
    max_leaves=30,
)


@given(_ANY_JSON)
def test_any_answer_becomes_a_few_printable_lines(answer: object) -> None:
    each = looked(0, "node7", answer)
    lines = list(as_lines([each]))
    assert all(line.isprintable() and len(line) < 300 for line in lines)
    assert each.place is None or str(each.place).isprintable()


def test_a_large_answer_is_cut() -> None:
    thread = {**_THREAD, "is_main": False, "calls": [["/x" * 4000, 1, "f" * 4000]] * 1000}
    answer = {"threads": [{**thread, "name": str(number)} for number in range(1000)]}
    lines = list(as_lines([looked(0, "node7", answer)]))
    assert len(lines) < 64 * 31 + 2
    assert max(map(len, lines)) <= 300


@given(_ANY_JSON)
def test_facts_are_those_of_a_stall_or_none(facts: object) -> None:
    stall = read(facts if isinstance(facts, dict) else {"waits": facts}, 4)
    assert stall is None or all(0 <= rank < 4 for rank in stall.missing)


@pytest.mark.parametrize(
    "facts",
    [
        {"seconds": 10, "waits": [{"names": ["a"], "count": 1, "missing": [[0, 10**9]], "present": []}], "circle": []},
        {"seconds": 10, "waits": [{"names": [], "count": 1, "missing": [[0, 0]], "present": []}], "circle": []},
        {"seconds": 10**400, "waits": [], "circle": []},
        {"seconds": float("nan"), "waits": [], "circle": []},
        {
            "seconds": 10,
            "waits": [{"names": ["a"], "count": 1, "missing": [[1, 1]], "present": []}],
            "circle": [[9, "a"]],
        },
    ],
)
def test_facts_that_cannot_be_true_are_refused(facts: dict[str, Any]) -> None:
    assert read(facts, 4) is None


def test_a_count_that_cannot_be_true_is_cut() -> None:
    waits = [{"names": ["a"], "count": 10**4000, "missing": [[1, 1]], "present": []}]
    stall = read({"seconds": 10, "waits": waits, "circle": []}, 4)
    assert stall is not None
    assert stall.parts[0].count <= 10**9


def test_the_facts_of_the_watch_are_understood() -> None:
    watch = StallWatch(warn_s=10, fatal_s=0)
    waiting = {"a": Wait((1, 2, 3), (0,)), "b": Wait((0,), (1, 2, 3)), "a2": Wait((1, 2, 3), (0,))}
    watch.check(waiting, 0.0)
    stall = read(json.loads(json.dumps(watch.check(waiting, 10.0).facts)), 4)
    assert stall is not None
    assert [(part.names, part.count, part.ranks, part.present) for part in stall.parts] == [
        (("a", "a2"), 2, (1, 2, 3), (0,)),
        (("b",), 1, (0,), (1, 2, 3)),
    ]
    assert stall.circle == ((0, "a"), (1, "b"))
    assert stall.missing == [0, 1, 2, 3]


# ---- ranks whose Python does not run


class _Asked:
    """A link that is asked for the status of its ranks, and answers at once."""

    def __init__(self, *statuses: object) -> None:
        self.host, self.pids, self._statuses = "node7", dict[int, int](), list(statuses)

    def ask(self, what: str, **fields: Any) -> Question:
        question = Question()
        question.finish(self._statuses if what == "status" else {}, "")
        return question


_UNRESPONSIVE = {"seconds": 12.0, "patience_s": 10.0}
_STALL = {"seconds": 10, "waits": [{"names": ["a"], "count": 1, "missing": [[0, 0]], "present": []}], "circle": []}


class _Said:
    """What hvdrun says if the agent of three ranks finds again and again that rank 0 is unresponsive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self._now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self._now)

    def message(self, *lines: str) -> None:
        self.lines += lines

    def after(self, facts: dict[str, Any], *statuses: object, is_named: bool = False) -> list[str]:
        link = cast(AgentLink, _Asked(*statuses))
        reports = Reports(cast(Screen, self), {link: frozenset(range(3))})
        if is_named:
            reports.found(link, 0, Finding("stall", "", _STALL))
            reports.close()
            self.lines.clear()
        for seconds in (0.0, 10.0):
            self._now = 100.0 + seconds
            grown = {**facts, "seconds": facts.get("seconds", 0) + seconds}
            reports.found(link, 0, Finding("unresponsive", "no Python of rank 0 has run", grown))
            reports.tick(self._now)
        return self.lines


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> _Said:
    return _Said(monkeypatch)


def test_a_rank_that_runs_no_python_is_named_once_if_others_wait(said: _Said) -> None:
    waits = {"rank": 1, "waiting_s": 11.0, "names": ["a"]}
    others = {"rank": 2, "waiting_s": 1.0, "names": ["b"]}, {"rank": 0, "waiting_s": 99.0, "names": []}
    lines = said.after(_UNRESPONSIVE, waits, *others)
    assert [line for line in lines if "no Python of rank 0 on node7 runs; rank 1 wait for 'a'" in line] == lines[:1]


@pytest.mark.parametrize(
    "status",
    [
        None,
        {"rank": 1},
        {"rank": 1, "waiting_s": 9.0, "names": ["a"]},
        {"rank": 9, "waiting_s": 90.0, "names": ["a"]},
        {"waiting_s": 11.0, "names": ["a"]},
        [],
    ],
)
def test_a_rank_for_which_nobody_waits_is_not_named(said: _Said, status: object) -> None:
    assert said.after(_UNRESPONSIVE, status) == []


def test_a_rank_that_was_named_is_not_named_again(said: _Said) -> None:
    assert said.after(_UNRESPONSIVE, {"rank": 1, "waiting_s": 11.0, "names": ["a"]}, is_named=True) == []


@pytest.mark.parametrize("facts", [{}, {"seconds": 12.0}, {"seconds": -1.0, "patience_s": 10.0}])
def test_facts_that_say_nothing_are_ignored(said: _Said, facts: dict[str, Any]) -> None:
    assert said.after(facts, {"rank": 1, "waiting_s": 1e6, "names": ["a"]}) == []


def _box(awake_at: float, patience_s: float, phase: Phase) -> bytearray:
    memory = bytearray(NBYTES)
    HEAD.pack_into(memory, 0, MARK, 4711, 0, 2, phase)
    NUMBER.pack_into(memory, AWAKE_AT, awake_at)
    OFFER.pack_into(memory, OFFER_AT, 0, 0, 0, 0, patience_s)
    return memory


def test_an_agent_tells_of_a_rank_that_does_not_wake_and_again() -> None:
    unresponsive, box = Unresponsive(), bytes(_box(100.0, 10.0, Phase.INSIDE))
    told = [now for now in range(100, 145) if unresponsive.look(0, box, float(now)) is not None]
    assert told == [110, 120, 130, 140]
    assert unresponsive.look(0, bytes(_box(145.0, 10.0, Phase.INSIDE)), 145.0) is None
    assert [now for now in range(100, 125) if unresponsive.look(1, box, float(now)) is not None] == [113, 123]


@pytest.mark.parametrize(
    "box",
    [
        bytes(NBYTES),
        bytes(_box(100.0, 10.0, Phase.JOINING)),
        bytes(_box(100.0, 10.0, Phase.OUTSIDE)),
        bytes(_box(0.0, 10.0, Phase.INSIDE)),
        bytes(_box(float("nan"), 10.0, Phase.INSIDE)),
        bytes(_box(100.0, 0.0, Phase.INSIDE)),
        bytes(_box(100.0, float("nan"), Phase.INSIDE)),
        bytes(_box(float("inf"), 1.0, Phase.INSIDE)),
    ],
)
def test_of_other_ranks_it_tells_nothing(box: bytes) -> None:
    assert Unresponsive().look(0, box, 1e6) is None
