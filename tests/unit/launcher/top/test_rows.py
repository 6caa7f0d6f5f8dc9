"""What hvdrun top makes of the answers of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hvdlite.launcher.monitor.client import Client, Job
from hvdlite.launcher.stream.fields import read
from hvdlite.launcher.top.lines import COLUMNS, cells, columns_for, heading, lines, worst
from hvdlite.launcher.top.rows import Viewer
from hvdlite.metrics.table import MEMORY_BYTES


class Answers(Client):
    """A client that gets these answers."""

    def __init__(self, ranks: Sequence[Mapping[str, Any]], size: int) -> None:
        self._ranks, self._size = ranks, size

    def job(self) -> Job:
        everyone = list(range(self._size))
        job = {
            "pid": 1,
            "command": ["python", "a\x1b.py"],
            "ran_s": 3700.0,
            "found": "",
            "found_ago_s": 0.0,
            "alive": everyone[1:],
            "logs": "",
            "size": self._size,
        }
        return read(Job, {**job, "hosts": {"one": everyone[::2], "two": everyone[1::2]}})

    def ask(self, what: str, **fields: Any) -> list[Mapping[str, Any]]:
        return [
            {"host": "one", "ranks": list(range(0, self._size, 2)), "answer": list(self._ranks)},
            {"host": "two", "ranks": list(range(1, self._size, 2)), "error": "no answer within 20 s"},
        ]


_RATES: dict[str, Any] = {
    "span_s": 10.0,
    "batches": 100,
    "nbytes": 10**9,
    "moved_s": 1.0,
    "waited_s": 3.0,
    "unagreed_s": 2.0,
    "steps": 50,
    "steps_per_s": 5.0,
    "late_s": [[2, 4.0], [99, 1.0]],
}


def answer(rank: int, **more: Any) -> dict[str, Any]:
    rates = dict(_RATES)
    told = {"rank": rank, "pid": 7, "at": 50.0, "state": "S", "cpu_s": 1.0, "rates": rates}
    told["quantities"] = {MEMORY_BYTES.name: 2_000_000}
    told |= {"phase": "INSIDE", "in_flight": 4, "waiting_s": 0.0, "unagreed_s": 0.0, "names": []}
    return {**told, "last": {"name": "grad", "tensors": 3, "number": 9, "at": 49.5}, **more}


def test_the_rank_that_others_wait_for_is_named() -> None:
    view = Viewer(
        Answers([answer(0), answer(2, waiting_s=12.0, names=["x"], state="T"), answer(4, rates=None)], 5)
    ).look()
    assert heading(view) == (
        "1: python a?.py: 5 rank(s) on 2 host(s), 1 h 1 min, 5 steps/s, all others wait for rank 2 40 % of the time"
    )
    first, second, third, _, fifth = view.rows
    assert cells(first)[2:] == ["5", "30 %", "20 %", "0 ms", "100 MB", "4", "-", "2 MB", "grad +2, 500 ms ago"]
    assert cells(second) == ["1", "two", *"--------", "no answer within 20 s"]
    assert cells(third)[5] == "80 ms"
    assert cells(third)[-1] == "stopped; grad +2, 500 ms ago"
    assert (fifth.steps_per_s, fifth.late_s) == (None, None)
    assert Viewer(Answers([answer(2)], 5)).look().rows[0].state == "ended"


def test_a_rank_that_does_not_come_is_the_slowest_before_it_has_come() -> None:
    waits = {"waiting_s": 6.0, "unagreed_s": 6.0, "names": ["x"]}
    view = Viewer(Answers([answer(0, **waits, missing=1), answer(1), answer(2, **waits)], 3)).look()
    assert heading(view).endswith("all others wait for rank 1 60 % of the time")
    assert [row.for_others for row in view.rows] == [pytest.approx(0.8), pytest.approx(0.2), pytest.approx(0.8)]
    assert view.rows[0].state == "waits 6 s for 'x'"


def test_cpu_is_what_was_used_between_two_views() -> None:
    told = answer(1)
    viewer = Viewer(Answers([told], 2))
    assert viewer.look().rows[1].cpu is None
    told |= {"at": 52.0, "cpu_s": 4.0}
    assert viewer.look().rows[1].cpu == pytest.approx(1.5)
    told |= {"at": 54.0, "pid": 8}
    assert viewer.look().rows[1].cpu is None


def test_cpu_stays_what_it_was_if_the_next_view_comes_at_once() -> None:
    told = answer(1)
    viewer = Viewer(Answers([told], 2))
    used = []
    for at, cpu_s in ((50.0, 1.0), (50.001, 1.02), (52.0, 4.0), (52.001, 4.02), (54.0, 6.0)):
        told |= {"at": at, "cpu_s": cpu_s}
        used.append(viewer.look().rows[1].cpu)
    assert used == [None, None, 1.5, 1.5, 1.0]


@pytest.mark.parametrize("span_s", [0.0, 1e-300, 1e-6, 0.49])
def test_what_is_averaged_over_almost_no_time_is_not_shown(span_s: float) -> None:
    first = answer(0)
    first["rates"] |= {"span_s": span_s, "steps_per_s": 1e9}
    view = Viewer(Answers([first, answer(2)], 3)).look()
    assert cells(view.rows[0])[2:7] == ["-"] * 5
    assert cells(view.rows[2])[2] == "5"
    assert (view.slowest, view.steps_per_s) == (None, 5.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"at": "now"},
        {"pid": -1},
        {"rates": {"span_s": float("nan")}},
        {"rates": {**_RATES, "late_s": [["x"]]}},
        {"rates": {**_RATES, "late_s": [[1, float("nan")]]}},
        {"last": []},
        {"in_flight": 1.5},
        {"waiting_s": 1e99, "names": 7},
        {"quantities": {MEMORY_BYTES.name: None}},
        {"quantities": {MEMORY_BYTES.name: -1}},
        {"state": []},
        {"phase": {}},
    ],
)
def test_answers_that_make_no_sense_are_not_shown(bad: dict[str, Any]) -> None:
    first, second, third = Viewer(Answers([answer(0, **bad), answer(2)], 3)).look().rows
    assert first.state.startswith("the message ")
    assert (first.last, second.last, third.last) == ("", "", "grad +2")


def test_texts_of_agents_are_made_printable() -> None:
    name = "\x1b[2J" + "x" * 5000
    row = Viewer(Answers([answer(0, last={"name": name, "tensors": 1, "number": 1, "at": 1.0})], 1)).look().rows[0]
    assert all(cell.isprintable() and len(cell) < 300 for cell in cells(row))


def test_a_narrow_terminal_has_fewer_columns_and_a_low_one_the_worst_ranks() -> None:
    view = Viewer(Answers([answer(rank) for rank in range(0, 100, 2)], 100)).look()
    table = [COLUMNS, *map(cells, view.rows)]
    assert columns_for(200, table) == list(range(len(COLUMNS)))
    assert columns_for(60, table) == [0, 2, 3, 5, 10]
    rows, left_out = worst(view, 60)
    assert left_out == 40
    assert [row.rank for row in rows] == sorted(row.rank for row in rows)
    assert {2, *range(1, 100, 2)} <= {row.rank for row in rows}
    assert len(list(lines(view))) == 102
