"""What an agent makes of a rank's black box."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import HEAD, MARK, NBYTES, RECORD, RECORDS, RECORDS_AT, Phase, Record
from hvdlite.launcher.agent.inspection.status import rates, status_of
from hvdlite.launcher.top.lines import cells
from hvdlite.launcher.top.rows import Viewer
from hvdlite.metrics.table import MEMORY_BYTES
from tests.unit.launcher.top.test_rows import Answers, answer


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
        view = Viewer(Answers([answer(0, at=now, rates=found), answer(1, at=now, rates=found)], 2)).look()
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
    assert found["quantities"][MEMORY_BYTES.name] > 1 << 20
    assert "phase" not in found
