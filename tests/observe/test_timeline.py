"""hvdrun writes one timeline for all ranks: on several hosts, while they run, and whoever is killed."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvdlite.launcher.job import timeline as module
from hvdlite.launcher.job.timeline import Timeline, check_events
from hvdlite.observe.timeline import sinks
from hvdlite.observe.timeline.file import MOST_BYTES
from hvdlite.observe.timeline.sinks import Difference, HvdrunsFile, Over
from hvdlite.rendezvous.job import Job
from tests.harness.patience import until
from tests.launcher.hvdrun import pids_in, run, started

FAKES = Path(__file__).resolve().parents[1] / "harness" / "fakes"
STEPS = """
import os, sys, time
from pathlib import Path
import numpy as np
import hvdlite as hvd
hvd.init()
Path(sys.argv[1], f"pid.{hvd.rank()}").write_text(str(os.getpid()))
for step in range(int(sys.argv[2])):
    hvd.allreduce(np.ones(100), name=f"x{step % 10}")
    time.sleep(0.005)  # computes
hvd.shutdown()
"""


def _load(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def _ranks(path: Path) -> set[int]:
    return {event["pid"] for event in _load(path) if event.get("cat") == "move"}


@pytest.mark.parametrize("hosts", [("-np", "1"), ("-np", "3"), ("-H", "localhost:1,far:2,farther:1")])
def test_one_file_has_all_ranks(hosts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    path = tmp_path / "t.json"
    flags = ("--timeline-filename", str(path), "--timeline-mark-cycles")
    ended = run(*hosts, *flags, sys.executable, "-c", STEPS, str(tmp_path), "50")
    assert (ended.returncode, ended.stderr) == (0, "")
    size = len(pids_in(tmp_path))
    flows, steps = defaultdict(list), dict.fromkeys(range(size), 0)
    for event in _load(path):
        if event.get("cat") == "batch":
            flows[event["id"]].append((event["ts"], event["ph"], event["pid"]))
        elif event["name"] == "ALLREDUCE":
            steps[event["pid"]] += 1
    assert steps == dict.fromkeys(range(size), 50)
    for ends in flows.values():  # in truth all hosts are this one, and so are their clocks
        (_, *begin), (_, *end) = sorted(ends)
        assert (begin, end[0]) == (["s", 0], "f")
        assert end[1] > 0
    assert len(flows) >= 50 * (size - 1)
    assert bool(flows) == (size > 1)
    assert {each.name for each in tmp_path.iterdir()} == {"t.json", *(f"pid.{rank}" for rank in range(size))}


@pytest.mark.parametrize("victim", ["a rank", "hvdrun", "an agent's ssh"])
def test_it_can_be_loaded_at_any_instant_and_after_a_kill(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    path = tmp_path / "t.json"
    with started(
        "-H",
        "localhost:1,far:1",
        "--timeline-filename",
        str(path),
        sys.executable,
        "-c",
        STEPS,
        str(tmp_path),
        "10000000",
    ) as hvdrun:
        until(lambda: path.exists() and path.stat().st_size > 0)
        until(lambda: _ranks(path) == {0, 1})
        for _ in range(20):
            _load(path)
        ranks = [psutil.Process(int((tmp_path / f"pid.{rank}").read_text())) for rank in range(2)]
        if victim == "a rank":
            ranks[1].kill()
        elif victim == "hvdrun":
            hvdrun.kill()
        else:
            (ssh,) = [each for each in ranks[1].parents() if each.ppid() == hvdrun.pid]
            ssh.kill()
        while psutil.wait_procs([*ranks], timeout=0.01)[1]:
            _load(path)
        hvdrun.wait()
    assert _ranks(path) == {0, 1}


def test_a_file_that_cannot_be_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "t.json"
    ended = run("-np", "2", "--timeline-filename", str(path), "touch", str(tmp_path / "started"))
    assert ended.returncode == 2
    assert ended.stderr == (
        f"hvdrun: the timeline {path} cannot be written: No such file or directory. See 'hvdrun --help'.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_with_dynamic_ranks_write_their_own(tmp_path: Path) -> None:
    program = (
        "import hvdlite as hvd, numpy as np, sys; hvd.init(); hvd.start_timeline(sys.argv[1]); "
        "hvd.allreduce(np.ones(3)); hvd.stop_timeline()"
    )
    path = tmp_path / "t.json"
    ended = run("-np", "2", sys.executable, "-c", program, str(path), HOROVOD_TIMELINE="DYNAMIC")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.json.rank0", "t.json.rank1"]


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
