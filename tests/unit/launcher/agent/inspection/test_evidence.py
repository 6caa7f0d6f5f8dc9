"""What an agent keeps of the last seconds, from recorded files of /proc and /sys, and what hvdrun concludes from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvdlite.blackbox.format import NBYTES, NUMBER, QUANTITIES_AT
from hvdlite.launcher.agent.inspection.evidence import Evidence
from hvdlite.launcher.reports.causes import Cause, explain, windows
from hvdlite.launcher.stream import questions
from hvdlite.metrics.table import WAITED_S

_TICKS = 100  # a second, as Linux counts for programs


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Host]]:
    """Those of a test, which lets go of their files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
    made: list[Host] = []
    yield made
    for host in made:
        host.evidence.end(host.rank)


class Host:
    """A recorded host with one rank, process 42, that computes for 0.9 s of each second on processor 1."""

    def __init__(self, root: Path, rank: int) -> None:
        self.root, self.rank, self.seconds = root, rank, 0
        self.faults = self.swapped = self.stolen = 0
        self.frequency = 3_000_000
        self.stopped_s = 0.0
        self.memory = bytearray(NBYTES)
        self.evidence = Evidence(root)
        process = SimpleNamespace(pid=42, returncode=None)
        worker: Any = SimpleNamespace(rank=rank, process=process, stopped_for=lambda now: self.stopped_s)
        self.write(0)
        self.evidence.begin(worker, self.memory)  # type: ignore[arg-type]

    def write(self, run_s: float) -> None:
        self._file("proc/stat", f"cpu 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 {self.stolen}\n")
        self._file("proc/vmstat", f"nr_free 7\npswpin {self.swapped}\npswpout 9\n")
        ticks, zeros = int(run_s * _TICKS), " ".join(["0"] * 14)
        stat = f"42 (python) R 1 42 42 0 -1 4 0 7 {self.faults} 0 {ticks} 0 3 4 20 0 9 0 0 0 0 {zeros} 1 0"
        self._file("proc/42/stat", stat)
        self._file("proc/42/task/42/schedstat", f"{int(run_s * 1e9)} 0 {int(run_s * 50)}\n")
        cpu = "sys/devices/system/cpu/cpu1/cpufreq"
        self._file(f"{cpu}/cpuinfo_max_freq", "3000000\n")
        self._file(f"{cpu}/scaling_cur_freq", f"{self.frequency}\n")

    def _file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def second(self, run_s: float) -> None:
        self.seconds += 1
        NUMBER.pack_into(self.memory, QUANTITIES_AT + WAITED_S.slot * NUMBER.size, self.seconds * (1 - run_s))
        self.write(self.seconds * run_s)
        self.evidence.look(100.0 + self.seconds)

    def answer(self) -> list[dict[str, Any]]:
        return self.evidence.answer(questions.Evidence((self.rank,), 5.0))


def _cause(hosts: list[Host], folder: Path, **grows: int) -> Cause:
    """That of rank 1, on whose host something happens for six seconds."""
    hosts += [Host(folder / "a", 0), Host(folder / "b", 1)]
    one, other = hosts
    for _ in range(7):
        one.second(0.5)
        for name, value in grows.items():
            setattr(other, name, value if name == "frequency" else getattr(other, name) + value)
        other.second(0.9)
    found = windows(one.answer(), "a", frozenset({0})) | windows(other.answer(), "b", frozenset({1}))
    assert sorted(found) == [0, 1]
    return explain(1, 0.4, found)


def test_steal_of_the_processors_that_a_rank_may_use(hosts: list[Host], tmp_path: Path) -> None:
    cause = _cause(hosts, tmp_path, stolen=50)
    assert cause.name == "steal"
    assert "gives its processors to others 0.5 s of each second" in cause.text


def test_a_processor_that_runs_slowly(hosts: list[Host], tmp_path: Path) -> None:
    cause = _cause(hosts, tmp_path, frequency=1_500_000)
    assert (cause.name, "at 50% of its highest frequency" in cause.text) == ("frequency", True)


def test_a_host_that_swaps(hosts: list[Host], tmp_path: Path) -> None:
    hosts += [Host(tmp_path / "a", 0), Host(tmp_path / "b", 1)]
    one, other = hosts
    for _ in range(7):
        one.second(0.5)
        other.faults += 80
        other.swapped += 2000
        other.seconds += 1
        other.write(other.seconds * 0.3)
        other.evidence.look(100.0 + other.seconds)
    found = windows(one.answer(), "a", frozenset({0})) | windows(other.answer(), "b", frozenset({1}))
    cause = explain(1, 0.4, found)
    assert (cause.name, "its host swaps" in cause.text) == ("swapping", True)


def test_who_only_computes_for_longer_has_more_to_do(hosts: list[Host], tmp_path: Path) -> None:
    assert _cause(hosts, tmp_path, stolen=1).name == "computing"


@pytest.mark.parametrize("looks", [0, 1])
def test_there_is_no_evidence_before_the_second_look(hosts: list[Host], tmp_path: Path, looks: int) -> None:
    host = Host(tmp_path, 0)
    hosts.append(host)
    for _ in range(looks):
        host.second(0.5)
    assert host.answer() == []


def test_the_evidence_is_of_the_seconds_that_were_asked_for(hosts: list[Host], tmp_path: Path) -> None:
    host = Host(tmp_path, 3)
    hosts.append(host)
    for _ in range(60):
        host.second(0.5)
    for seconds, over_s in [(5.0, 5.0), (0.0, 1.0), (1e9, 15.0)]:
        (row,) = host.evidence.answer(questions.Evidence((3, 4), seconds))
        assert (row["rank"], row["over_s"]) == (3, over_s)
        assert row["sums"]["run_s"] == pytest.approx(0.5 * over_s)
    host.stopped_s += 0.7
    host.second(0.5)
    assert host.answer()[0]["sums"]["stopped_s"] == pytest.approx(0.7)
    host.evidence.end(3)
    host.evidence.look(1000.0)
    assert host.answer() == []


def test_a_rank_that_has_ended_has_no_evidence(hosts: list[Host], tmp_path: Path) -> None:
    host = Host(tmp_path, 0)
    hosts.append(host)
    host.second(0.5)
    host._file("proc/42/stat", "")
    host.evidence.look(200.0)
    assert host.answer() == []
