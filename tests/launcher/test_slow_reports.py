"""What hvdrun makes of the finding that a rank is slow: it asks all agents, and never waits for them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hvdlite.blackbox.format import Finding
from hvdlite.launcher.agents.link import Question
from hvdlite.launcher.reports.reports import Reports

SAID = "rank 1 on b makes all others wait, 120 ms of each step (30% of the time, for 4 s), between gradients"
FACTS = {"said": SAID, "rank": 1, "host": "b", "share": 0.3, "since_s": 4.0}
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
        self.asked: list[tuple[str, dict[str, Any], Question]] = []

    def ask(self, what: str, **fields: Any) -> Question:
        question = Question()
        self.asked.append((what, fields, question))
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
    assert [asked[:2] for asked in job.a.asked + job.b.asked] == [
        ("evidence", {"ranks": [rank], "seconds": 4.0}) for rank in (0, 1)
    ]
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
