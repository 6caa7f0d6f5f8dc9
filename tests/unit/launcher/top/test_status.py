"""What an agent makes of a rank's black box, and hvdrun top of the answers of agents."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import HEAD, MARK, NBYTES, RECORD, RECORDS, RECORDS_AT, Phase, Record
from hvdlite.launcher.agent.inspection.status import rates, status_of
from hvdlite.launcher.monitor.client import Client, Job
from hvdlite.launcher.stream.fields import read
from hvdlite.launcher.top.lines import COLUMNS, cells, columns_for, heading, lines, worst
from hvdlite.launcher.top.rows import Viewer


def _record(position: int, done_at: float, name: str = "w", **more: Any) -> Record:
    plain = Record(
        position, 0, position + 1, 1, 1000, 0.0, done_at - 0.2, done_at - 0.1, done_at, 0.0, -1, 0.0, 0, name
    )
    return plain._replace(**more)


def _memory(records: Sequence[Record]) -> bytearray:
    memory = bytearray(NBYTES)
    HEAD.pack_into(memory, 0, MARK, os.getpid(), 3, 4, Phase.INSIDE)
    for record in records:
        index = record.position + 1
        *numbers, name = record[1:]
        RECORD.pack_into(memory, RECORDS_AT + index % RECORDS * RECORD.size, index, *numbers, name.encode(), index)
    return memory


@pytest.mark.parametrize("count", [0, 1, 2, RECORDS - 1, RECORDS, RECORDS + 1, 2 * RECORDS - 1, 3 * RECORDS + 77])
def test_the_newest_records_come_first_however_often_the_memory_was_full(count: int) -> None:
    memory = bytes(_memory([_record(position, float(position)) for position in range(count)]))
    positions = [record.position for record in blackbox.newest(memory)]
    assert positions == list(range(count - 1, -1, -1))[:RECORDS]


def test_a_record_that_is_being_written_is_left_out() -> None:
    memory = _memory([_record(position, float(position)) for position in range(10)])
    RECORD.pack_into(memory, RECORDS_AT + 10 * RECORD.size, *RECORD.unpack_from(memory, RECORDS_AT)[:-1], 11)
    assert [record.position for record in blackbox.newest(bytes(memory))] == list(range(8, -1, -1))


def test_rates_are_those_of_the_last_seconds() -> None:
    """Ten steps a second, of two batches, each of which takes 0.1 s; half of each step the program waits."""
    records = []
    for step in range(1000):
        records.append(_record(2 * step, 0.1 * step, "a", waited_s=0.03, agreed_at=0.1 * step - 0.01))
        at = 0.1 * step + 0.05
        records.append(_record(2 * step + 1, at, "b", waited_s=0.02, last_rank=2, late_s=0.005, agreed_at=at))
    found = rates(reversed(records), 100.0)
    assert found["span_s"] == pytest.approx(10.0, abs=0.2)
    assert found["steps_per_s"] == pytest.approx(10.0)
    assert found["nbytes"] / found["span_s"] == pytest.approx(20_000, rel=0.02)
    assert found["waited_s"] / found["span_s"] == pytest.approx(0.5, rel=0.02)
    assert found["unagreed_s"] / found["span_s"] == pytest.approx(0.4, rel=0.02)
    ((rank, late_s),) = found["late_s"]
    assert (rank, late_s / found["span_s"]) == (2, pytest.approx(0.05, rel=0.02))


def test_a_rank_is_as_late_in_a_pause_as_before() -> None:
    """76 ms in each of ten steps a second, and then nothing for a while: validation, or the end."""
    late = {"last_rank": 1, "late_s": 0.076}
    records = [_record(position, 0.1 * position, **late) for position in range(100)][::-1]
    for now in (9.95, 12.0, 15.0, 40.0):
        found = json.loads(json.dumps(rates(records, now)))
        view = Viewer(_Answers([_told(0, at=now, rates=found), _told(1, at=now, rates=found)], 2)).look()
        assert cells(view.rows[1])[5] == "76 ms"
        assert view.rows[0].late_s == 0.0


def test_steps_that_take_longer_than_the_window_are_counted_too() -> None:
    found = rates([_record(2, 95.0), _record(1, 75.0), _record(0, 55.0)], 96.0)
    assert found["steps_per_s"] == pytest.approx(1 / 20)


def test_steps_of_a_job_that_stands_become_rarer() -> None:
    records = [_record(position, 0.1 * position) for position in range(100)]
    assert [round(rates(records[::-1], now)["steps_per_s"], 2) for now in (10.0, 11.9, 29.9)] == [10, 0.5, 0.05]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e308])
def test_records_that_make_no_sense_are_no_error(bad: float) -> None:
    records = [_record(position, 99.0 + 0.1 * position) for position in range(5)]
    records += [_record(5, 99.9, waited_s=bad, agreed_at=bad), _record(6, bad, moved_at=bad), _record(7, -bad)]
    assert json.dumps(rates(records[::-1], 100.0))


def test_two_steps_at_once_make_no_rate() -> None:
    records = [_record(0, 8.0, "x"), _record(1, 9.9999), _record(2, 9.99999)]
    assert [rates(records[::-1], now)["steps_per_s"] for now in (10.0, 11.0)] == [None, pytest.approx(1, rel=0.01)]


def test_names_that_never_come_again_make_no_steps() -> None:
    assert rates([_record(9, 9.0, "x"), _record(8, 8.0, "y")], 10.0)["steps_per_s"] is None
    assert rates([_record(9, 9.0, "x")], 10.0) == {}


def test_a_process_without_a_box_has_what_the_kernel_knows() -> None:
    found = status_of(0, os.getpid(), None, 1.0)
    assert found["memory_bytes"] > 1 << 20
    assert "phase" not in found


# ---- hvdrun top


class _Answers(Client):
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


def _told(rank: int, **more: Any) -> dict[str, Any]:
    rates = dict(_RATES)
    told = {"rank": rank, "pid": 7, "at": 50.0, "state": "S", "cpu_s": 1.0, "memory_bytes": 2_000_000, "rates": rates}
    told |= {"phase": "INSIDE", "in_flight": 4, "waiting_s": 0.0, "unagreed_s": 0.0, "names": []}
    return {**told, "last": {"name": "grad", "tensors": 3, "number": 9, "at": 49.5}, **more}


def test_the_rank_that_others_wait_for_is_named() -> None:
    view = Viewer(
        _Answers([_told(0), _told(2, waiting_s=12.0, names=["x"], state="T"), _told(4, rates=None)], 5)
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
    assert Viewer(_Answers([_told(2)], 5)).look().rows[0].state == "ended"


def test_a_rank_that_does_not_come_is_the_slowest_before_it_has_come() -> None:
    waits = {"waiting_s": 6.0, "unagreed_s": 6.0, "names": ["x"]}
    view = Viewer(_Answers([_told(0, **waits, missing=1), _told(1), _told(2, **waits)], 3)).look()
    assert heading(view).endswith("all others wait for rank 1 60 % of the time")
    assert [row.for_others for row in view.rows] == [pytest.approx(0.8), pytest.approx(0.2), pytest.approx(0.8)]
    assert view.rows[0].state == "waits 6 s for 'x'"


def test_cpu_is_what_was_used_between_two_views() -> None:
    told = _told(1)
    viewer = Viewer(_Answers([told], 2))
    assert viewer.look().rows[1].cpu is None
    told |= {"at": 52.0, "cpu_s": 4.0}
    assert viewer.look().rows[1].cpu == pytest.approx(1.5)
    told |= {"at": 54.0, "pid": 8}
    assert viewer.look().rows[1].cpu is None


def test_cpu_stays_what_it_was_if_the_next_view_comes_at_once() -> None:
    told = _told(1)
    viewer = Viewer(_Answers([told], 2))
    used = []
    for at, cpu_s in ((50.0, 1.0), (50.001, 1.02), (52.0, 4.0), (52.001, 4.02), (54.0, 6.0)):
        told |= {"at": at, "cpu_s": cpu_s}
        used.append(viewer.look().rows[1].cpu)
    assert used == [None, None, 1.5, 1.5, 1.0]


@pytest.mark.parametrize("span_s", [0.0, 1e-300, 1e-6, 0.49])
def test_what_is_averaged_over_almost_no_time_is_not_shown(span_s: float) -> None:
    first = _told(0)
    first["rates"] |= {"span_s": span_s, "steps_per_s": 1e9}
    view = Viewer(_Answers([first, _told(2)], 3)).look()
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
        {"memory_bytes": None},
        {"state": []},
        {"phase": {}},
    ],
)
def test_answers_that_make_no_sense_are_not_shown(bad: dict[str, Any]) -> None:
    first, second, third = Viewer(_Answers([_told(0, **bad), _told(2)], 3)).look().rows
    assert first.state.startswith("the message ")
    assert (first.last, second.last, third.last) == ("", "", "grad +2")


def test_texts_of_agents_are_made_printable() -> None:
    name = "\x1b[2J" + "x" * 5000
    row = Viewer(_Answers([_told(0, last={"name": name, "tensors": 1, "number": 1, "at": 1.0})], 1)).look().rows[0]
    assert all(cell.isprintable() and len(cell) < 300 for cell in cells(row))


def test_a_narrow_terminal_has_fewer_columns_and_a_low_one_the_worst_ranks() -> None:
    view = Viewer(_Answers([_told(rank) for rank in range(0, 100, 2)], 100)).look()
    table = [COLUMNS, *map(cells, view.rows)]
    assert columns_for(200, table) == list(range(len(COLUMNS)))
    assert columns_for(60, table) == [0, 2, 3, 5, 10]
    rows, left_out = worst(view, 60)
    assert left_out == 40
    assert [row.rank for row in rows] == sorted(row.rank for row in rows)
    assert {2, *range(1, 100, 2)} <= {row.rank for row in rows}
    assert len(list(lines(view))) == 102
