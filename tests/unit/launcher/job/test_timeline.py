"""The one timeline of a job, which hvdrun writes: events that ranks send it, clocks, and a disk that is full."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hvdlite.launcher.job import timeline as module
from hvdlite.launcher.job.timeline import Timeline, check_events
from hvdlite.observe.timeline import sinks
from hvdlite.observe.timeline.file import MOST_BYTES
from hvdlite.observe.timeline.sinks import Difference, HvdrunsFile, Over
from hvdlite.rendezvous.job import Job
from tests.harness.patience import until


def _load(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


@contextmanager
def _served(path: Path, said: list[str], ahead_s: float = 0.0) -> Iterator[tuple[Timeline, HvdrunsFile]]:
    job = Job.create()
    with Timeline(str(path), job, 2, said.append, lambda: time.monotonic() + ahead_s) as timeline:
        yield timeline, HvdrunsFile("hvdrun's", timeline.address, job.key("timeline"), 1)


def _event(rank: int = 1, **fields: Any) -> bytes:
    return json.dumps({"pid": rank, **fields}).encode()


def test_the_clock_of_hvdruns_host_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _served(tmp_path / "t", [], ahead_s=1e6) as (_, sink):
        assert sink.shift() == 0.0  # one host has one clock
    monkeypatch.setattr(sinks, "clock_id", lambda: secrets.token_hex(4))
    with _served(tmp_path / "t", [], ahead_s=1e6) as (_, sink):
        shift = sink.shift()
        assert sink._difference is not None
        assert abs(shift - 1e6) <= sink._difference.error_s(time.monotonic())


def test_the_best_sample_of_the_clocks_counts_until_it_is_old() -> None:
    difference = Difference()
    difference.add(100.0, 102.0, 501.5)
    assert difference.shift == 400.5
    difference.add(110.0, 110.2, 510.2)
    assert difference.shift == pytest.approx(400.1)
    difference.add(120.0, 123.0, 530.0)
    assert difference.shift == pytest.approx(400.1)
    difference.add(30000.0, 30003.0, 30500.0)  # by now the clocks may have drifted by as much
    assert difference.shift == pytest.approx(498.5)
    assert difference.error_s(30003.0) == 1.5


def test_more_than_a_question_may_have_is_sent_in_several(tmp_path: Path) -> None:
    events = [_event(text="x" * 1000, number=number) for number in range(3000)]
    events[7:7] = [_event(text="y" * (MOST_BYTES + 10))]  # which cannot be sent
    with _served(tmp_path / "t", []) as (_, sink):
        sink.append(b",\n".join(events))
    assert [event["number"] for event in _load(tmp_path / "t")] == list(range(3000))


def test_a_full_disk_is_one_line_and_ranks_stop_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with _served(tmp_path / "t", said) as (_, sink):
        sink.append(_event(number=1))
        until(lambda: len(_load(tmp_path / "t")) == 1)

        def full(self: Any, events: bytes) -> None:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(module.JsonArrayFile, "append", full)

        def is_over() -> bool:
            try:
                sink.append(_event(number=2))
            except Over:
                return True
            return False

        until(is_over)
    end = "ends here, and the job continues without it: No space left on device"
    assert said == [f"the timeline {tmp_path / 't'} {end}"]
    assert len(_load(tmp_path / "t")) == 1


@pytest.mark.parametrize(
    "events",
    [
        b'{"pid":1}],[{"pid":1}',
        b'{"pid":1},',
        b'{"pid":0}',
        b'{"pid":true}',
        b"1",
        b'{"pid":1,"ts":NaN}',
        b'{"pid":1,"ts":-Infinity}',
        b'{"pid":1,"name":"\xff"}',
        b'{"pid":1,"args":' + b"[" * 100000,
        b"\n",
    ],
)
def test_what_is_no_event_of_the_rank_is_not_written(events: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        check_events(events, 1)
    with _served(tmp_path / "t", []) as (_, sink):
        with pytest.raises(OSError):
            sink.append(events)
        sink.append(_event(good=True))
    assert _load(tmp_path / "t") == [{"pid": 1, "good": True}]


def test_a_rank_that_is_not_of_the_job_is_not_heard(tmp_path: Path) -> None:
    with _served(tmp_path / "t", []) as (_, sink):
        sink._rank = 2
        with pytest.raises(OSError):
            sink.append(_event(2))
    assert _load(tmp_path / "t") == []


def test_a_killed_hvdrun_is_an_end_of_the_timeline(tmp_path: Path) -> None:
    with _served(tmp_path / "t", []) as (_, sink):
        pass
    with pytest.raises(OSError, match="hvdrun does not take it"):
        sink.append(_event())
