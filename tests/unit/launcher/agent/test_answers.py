"""Every question to an agent is answered, whatever a rank has written and whatever goes wrong."""

from __future__ import annotations

import json
import os
import select

import pytest

from hvdlite.launcher.agent.answers import ANSWERS, Answerer
from hvdlite.launcher.agent.inspection.stacks import _parsed, _parsed_dump
from hvdlite.launcher.agent.inspection.watch import Watch
from hvdlite.launcher.agent.ranks.workers import Workers
from hvdlite.launcher.stream.messages import Ask
from hvdlite.launcher.stream.questions import QUESTIONS, Clock
from tests.harness.patience import PATIENCE_S


@pytest.mark.parametrize("number", ["Infinity", "NaN", "null", '"x"', "[]"])
def test_numbers_that_a_rank_made_up_are_not_believed(number: str) -> None:
    for thread in (f'[{number}, 1, "x", []]', f'[1, {number}, "x", []]'):
        told = json.loads(f'{{"threads": [{thread}]}}')
        assert _parsed(told) is None
        (stack,) = _parsed_dump("Thread 0x00000001 (most recent call first):\n", told["threads"], {})
        assert (stack.ident, stack.tid, stack.name) == (1, 0, "")


@pytest.mark.parametrize("error", [OverflowError, RecursionError, TypeError])
def test_an_answer_that_fails_is_an_error(error: type[Exception]) -> None:
    def fail(question: Clock) -> None:
        raise error("no such luck")

    answerer = Answerer({"Clock": fail})
    answerer.begin(Ask(7, Clock()))
    try:
        assert select.select([answerer], [], [], PATIENCE_S)[0]
        (answer,) = answerer.finished()
    finally:
        os.close(answerer._readable)
        os.close(answerer._written)
    assert answer == (7, None, f"the agent failed: {error.__name__}('no such luck')")


def test_every_question_has_an_answer() -> None:
    assert set(QUESTIONS) == {*ANSWERS, *Watch(Workers(), lambda data: None).answers, "Stacks"}
