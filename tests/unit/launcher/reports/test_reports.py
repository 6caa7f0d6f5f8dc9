"""What hvdrun makes of findings about slow and unresponsive ranks: it asks all agents, and never waits for them."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from hvdlite.blackbox.format import Finding
from hvdlite.launcher.agents.link import AgentLink, Question
from hvdlite.launcher.reports import reports as module
from hvdlite.launcher.reports.reports import Reports
from hvdlite.launcher.stream import questions
from hvdlite.negotiation.delays.straggler import Straggler

SAID = "rank 1 on b makes all others wait, 120 ms of each step (30% of the time, for 4 s), between gradients"
FACTS = Straggler(SAID, 1, "b", 10, 0.12, None, 0.3, 4.0, "between")._asdict()
FOUND = Finding("straggler", f"{SAID}. Look at the load", FACTS)


class Screen:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, *lines: str) -> None:
        self.lines += lines


class Link:
    """An agent that answers when the test says so."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.asked: list[tuple[questions.Question, Question]] = []

    def ask(self, what: questions.Question) -> Question:
        question = Question()
        self.asked.append((what, question))
        return question

    def answer(self, answer: Any) -> None:
        self.asked[-1][-1].finish(answer, "")


def row(rank: int, **sums: float) -> dict[str, Any]:
    return {"rank": rank, "over_s": 4.0, "sums": {"run_s": 1.0, "delay_s": 0.2, **sums}, "cores": None, "memory": None}


class Job:
    """Rank 0 on host a, and rank 1 on b."""

    def __init__(self) -> None:
        self.screen, self.a, self.b = Screen(), Link("a"), Link("b")
        ranks: dict[Any, frozenset[int]] = {self.a: frozenset({0}), self.b: frozenset({1})}
        screen: Any = self.screen
        self.reports = Reports(screen, ranks)

    def find(self, found: Finding = FOUND) -> None:
        link: Any = self.a
        self.reports.found(link, 0, found)


def test_it_is_said_with_its_cause_once_all_agents_have_answered() -> None:
    job = Job()
    job.find()
    now = time.monotonic()
    assert [what for what, _ in job.a.asked + job.b.asked] == [questions.Evidence((rank,), 4.0) for rank in (0, 1)]
    job.a.answer([row(0, loading_s=0.1)])
    job.reports.tick(now)
    assert job.screen.lines == []
    job.b.answer([row(1, loading_s=1.3)])
    job.reports.tick(now)
    assert job.screen.lines == [
        f"hvdrun: {SAID}: it waits for data 0.3 s of each second; give its loader more workers, or faster storage"
    ]
    assert job.reports.causes == {1: "loading data"}
    assert job.reports.deadline is None


def test_an_agent_that_does_not_answer_is_not_waited_for_longer_than_a_few_seconds() -> None:
    job = Job()
    job.find()
    job.a.answer([row(0)])
    deadline = job.reports.deadline
    assert deadline is not None
    assert deadline - time.monotonic() <= 5.0
    job.reports.tick(deadline)
    (line,) = job.screen.lines
    assert line.startswith(f"hvdrun: {SAID}: there is not enough evidence of the cause")
    assert job.reports.causes == {}


def test_a_cause_that_is_not_known_any_more_is_forgotten() -> None:
    job = Job()
    for loaded_s in (1.3, 0.0):
        job.find()
        job.a.answer([row(0)])
        job.b.answer([row(1, loading_s=loaded_s)])
        job.reports.tick(time.monotonic())
    assert len(job.screen.lines) == 2
    assert job.reports.causes == {}


def test_what_is_open_at_the_end_of_the_job_is_said_then() -> None:
    job = Job()
    job.find()
    job.reports.close()
    assert len(job.screen.lines) == 1


def test_an_agent_that_answers_nonsense_costs_only_its_evidence() -> None:
    job = Job()
    job.find()
    job.a.answer([row(7)])
    job.b.answer([row(1, loading_s=1.3)])
    job.reports.tick(time.monotonic())
    assert job.screen.lines[0] == "hvdrun: a: the agent's answer has no valid rank 7"
    assert "there is not enough evidence" in job.screen.lines[1]


@pytest.mark.parametrize("facts", [{}, {**FACTS, "share": "much"}, {**FACTS, "said": None}, {**FACTS, "rank": -1}])
def test_a_finding_without_its_facts_is_said_as_it_is(facts: dict[str, Any]) -> None:
    job = Job()
    job.find(FOUND._replace(facts=facts))
    assert job.a.asked == []
    assert job.screen.lines == [f"hvdrun: {FOUND.text}"]


def test_many_findings_at_once_do_not_make_many_questions() -> None:
    job = Job()
    for _ in range(100):
        job.find()
    assert len(job.a.asked) == 16


# ---- ranks whose Python does not run


class _Asked:
    """A link that is asked for the status of its ranks, and answers at once."""

    def __init__(self, *statuses: object) -> None:
        self.host, self.pids, self._statuses = "node7", dict[int, int](), list(statuses)

    def ask(self, what: questions.Question) -> Question:
        question = Question()
        question.finish(self._statuses if isinstance(what, questions.Status) else {}, "")
        return question


_UNRESPONSIVE = {"seconds": 12.0, "patience_s": 10.0}
_STALL = {"seconds": 10, "waits": [[["a"], 1, [[0, 0]], []]], "circle": []}


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
        reports = Reports(cast(Any, self), {link: frozenset(range(3))})
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
