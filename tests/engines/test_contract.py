"""The contract: what every engine that runs hvdlite's ranks keeps, and what it says it cannot.

A job of two ranks plays each scenario once per engine, and all promises of the scenario are looked up in what came of
it. A promise that an engine cannot keep, by a limit of its own, is listed in its row with the reason; it must really
fail, so that the list stays true. MPICH's Hydra has no row: it kills the others so fast that they may not hear of a
lost rank, and its exit code after Ctrl-C differs from run to run.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.engines.part import FAILING, LEFT_ALONE, MESSAGE
from tests.engines.playing import RANKS, Outcome, play
from tests.engines.rows import ROWS, CommandRow, Row
from tests.harness.patience import PROMPT_S

Promise = Callable[[Row, Outcome], Any]
OTHERS = sorted(set(range(RANKS)) - {FAILING})
TOTAL = sum(rank + 1.0 for rank in range(RANKS))


def is_placed(row: Row, outcome: Outcome) -> None:
    places = sorted(report["place"] for report in outcome.reports["ready"])
    if row.hosts == 1:
        assert places == [[rank, RANKS, rank, RANKS, 0, 1] for rank in range(RANKS)]
    else:
        assert places == [[rank, RANKS, 0, 1, rank, RANKS] for rank in range(RANKS)]


def is_summed(row: Row, outcome: Outcome) -> None:
    assert [report["total"] for report in outcome.reports["ready"]] == [TOTAL] * RANKS


def has_results(row: Row, outcome: Outcome) -> None:
    found = re.search(r"^caller: results (.*)$", outcome.log, re.MULTILINE)
    assert found, "the caller got no results"
    assert json.loads(found[1]) == [{"rank": rank, "total": TOTAL} for rank in range(RANKS)]


def ends_well(row: Row, outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.log


def shows_no_key(row: Row, outcome: Outcome) -> None:
    assert outcome.keys > 0
    assert outcome.shown == set()


def leaves_no_process(row: Row, outcome: Outcome) -> None:
    assert outcome.processes == []


def leaves_no_file(row: Row, outcome: Outcome) -> None:
    assert outcome.files == []


def passes_exception_on(row: Row, outcome: Outcome) -> None:
    assert re.search(rf"\bValueError: {MESSAGE}", outcome.log), outcome.log


def blames_rank(row: Row, outcome: Outcome) -> None:
    assert row.blames(outcome.log)[0] == FAILING, outcome.log


def blames_host(row: Row, outcome: Outcome) -> None:
    assert row.blames(outcome.log)[1] in row.names, outcome.log


def others_lose_it(row: Row, outcome: Outcome) -> None:
    """By the end of its connection: silence loses nobody here."""
    assert [(report["rank"], report["lost"]) for report in outcome.reports["lost"]] == [
        (rank, FAILING) for rank in OTHERS
    ]
    assert max(report["at"] for report in outcome.reports["lost"]) < outcome.one("fails")["at"] + PROMPT_S


def caller_hears_soon(row: Row, outcome: Outcome) -> None:
    assert outcome.ended_at < outcome.one("fails")["at"] + PROMPT_S


def has_code(scenario: str) -> Promise:
    def promise(row: Row, outcome: Outcome) -> None:
        known = row.codes[scenario]
        assert outcome.code in (known if isinstance(known, tuple) else (known,)), outcome.log

    return promise


ALWAYS: dict[str, Promise] = {
    "no key is shown": shows_no_key,
    "no process is left": leaves_no_process,
    "no file is left": leaves_no_file,
}
PROMISES: dict[str, dict[str, Promise]] = {
    "agrees": {
        "ranks and sizes": is_placed,
        "the sum": is_summed,
        "results": has_results,
        "the code of success": ends_well,
        **ALWAYS,
    },
    "raises": {
        "the rank's exception": passes_exception_on,
        "the rank of the error": blames_rank,
        "the host of the error": blames_host,
        "the others lose it": others_lose_it,
        "the caller hears soon": caller_hears_soon,
        "the code of an error": has_code("raises"),
        **ALWAYS,
    },
    "killed": {
        "the rank that was killed": blames_rank,
        "the host where it was killed": blames_host,
        "the others lose it": others_lose_it,
        "the caller hears soon": caller_hears_soon,
        "the code of a kill": has_code("killed"),
        **ALWAYS,
    },
    "interrupted": {"the code of Ctrl-C": has_code("interrupted"), **ALWAYS},
    "terminated": {"the code of SIGTERM": has_code("terminated"), **ALWAYS},
}


def cases() -> list[Any]:
    """Every engine with every promise; what its row excludes is expected to fail."""
    found = []
    for row in ROWS.values():
        for scenario, promises in PROMISES.items():
            for promise in promises:
                reason = row.cannot.get(promise)
                cannot = [pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)] if reason else []
                identity = f"{row.name}-{scenario}-{promise}"
                found.append(pytest.param(row.name, scenario, promise, marks=[*row.needs, *cannot], id=identity))
    return found


@functools.cache
def attempted(name: str, scenario: str) -> Outcome | Exception:
    try:
        return play(ROWS[name], scenario)
    except Exception as error:  # a job that hangs does so once, and not for every promise
        return error


def played(name: str, scenario: str) -> Outcome:
    outcome = attempted(name, scenario)
    if isinstance(outcome, Exception):
        raise RuntimeError(f"{name} did not play {scenario!r}") from outcome
    return outcome


@pytest.fixture(scope="module")
def clusters(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the engines of all chosen tests need for their jobs."""
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    with ExitStack() as stack:
        for row in ROWS.values():
            if row.name in chosen and not any(need.args[0] for need in row.needs):
                stack.enter_context(row.cluster())
        yield


@pytest.mark.parametrize(("name", "scenario", "promise"), cases())
@pytest.mark.usefixtures("clusters")
def test_the_engine_keeps(name: str, scenario: str, promise: str) -> None:
    PROMISES[scenario][promise](ROWS[name], played(name, scenario))


class Careless(CommandRow):
    """Starts ranks by hand, with the key in an argument, leaves a file, and keeps output and exit codes to itself."""

    name = "careless"
    codes = ROWS["hvdrun"].codes
    ending = LEFT_ALONE
    PROGRAM = """
import os, subprocess, sys
open("left behind", "w").close()
def rank(number):
    own = {"HVDLITE_RANK": str(number), "HVDLITE_SIZE": "2", "HVDLITE_LOCAL_SIZE": "2", "HVDLITE_JOB": str(os.getpid())}
    environ = {**os.environ, **own, "HVDLITE_SECRET": "5e" * 32}
    command = [sys.executable, "-X", "key=" + "5e" * 32, *sys.argv[1:]]
    return subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
for process in [rank(number) for number in range(2)]:
    process.wait()
sys.exit(3)
"""

    def command(self, ranks: int) -> list[str]:
        return [sys.executable, "-c", self.PROGRAM]


@pytest.mark.parametrize(
    ("scenario", "broken"),
    [
        ("agrees", {"results", "the code of success", "no key is shown", "no file is left"}),
        (
            "raises",
            {
                "the rank's exception",
                "the rank of the error",
                "the host of the error",
                "the code of an error",
                "no key is shown",
                "no file is left",
            },
        ),
    ],
)
def test_a_careless_engine_is_found_out(scenario: str, broken: set[str]) -> None:
    row = Careless()
    outcome = play(row, scenario)
    found = set()
    for name, promise in PROMISES[scenario].items():
        try:
            promise(row, outcome)
        except AssertionError:
            found.add(name)
    assert found == broken


def test_what_an_engine_cannot_do_is_named_by_promise_and_reason() -> None:
    known = {promise for promises in PROMISES.values() for promise in promises}
    for row in ROWS.values():
        assert row.cannot.keys() <= known, row.name
        assert all(row.cannot.values()), row.name
