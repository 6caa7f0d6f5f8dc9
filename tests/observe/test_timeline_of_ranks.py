"""Timelines of real ranks: what stands in them, on and off at any time, ranks that are killed, disks that are full."""

from __future__ import annotations

import itertools
import json
import resource
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hvdlite as hvd
from hvdlite.observe.timeline import recording
from hvdlite.session import current
from tests.harness import ProcessRanks, pause_at, process_ranks, reached
from tests.harness.patience import until

Event = dict[str, Any]
LANES = ("queue", "negotiate", "wait", "move", "finish")


def _file(path: Path, rank: int, size: int) -> Path:
    return path if size == 1 else path.with_name(f"{path.name}.rank{rank}")


def _load(path: Path) -> list[Event]:
    events: list[Event] = json.loads(path.read_text())
    return events


def _moves(events: list[Event]) -> list[Event]:
    return [event for event in events if event.get("cat") == "move"]


def _tensors(events: list[Event]) -> list[str]:
    return [tensor[0] for event in _moves(events) for tensor in event["args"]["tensors"]]


def _on_and_off(path: str) -> None:
    hvd.init()
    array = np.ones((3, 4), np.float32)
    hvd.allreduce(array, name="before")
    hvd.start_timeline(path, mark_cycles=True)
    for step in range(5):
        handles = [hvd.allreduce_async(array, name=f'"{step}\\{number}') for number in range(4)]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.broadcast(np.arange(5), 0, name=f"root {step}")
    if hvd.size() == 3:
        pair = hvd.add_process_set([1, 2])
        if pair.included():
            hvd.allgather(array, name="in a set", process_set=pair)
    for _ in range(5):
        hvd.allreduce(array, name="in a call")
    hvd.barrier()
    hvd.stop_timeline()
    hvd.allreduce(array, name="after")
    hvd.stop_timeline()
    hvd.start_timeline(path + ".again")
    hvd.allreduce(array, name="again")
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_rank_records_what_it_did_between_start_and_stop(size: int, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for outcome in process_ranks(size, _on_and_off, str(path)):
        outcome.result()
    flows: dict[int, list[tuple[float, str, int]]] = defaultdict(list)
    for rank in range(size):
        events = _load(_file(path, rank, size))
        names = _tensors(events)
        assert {name for name in names if "noname" not in name and "hvdlite" not in name} == {
            *(f'"{step}\\{number}' for step in range(5) for number in range(4)),
            *(f"root {step}" for step in range(5)),
            "in a call",
            *(("in a set",) if size == 3 and rank else ()),
        }
        assert names.count("in a call") == 5
        assert {event["pid"] for event in events} == {rank}
        assert any(event["name"] == "CYCLE_START" for event in events)
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "NEGOTIATE_BROADCAST", "BROADCAST", "BARRIER"} <= {
            event["name"] for event in events
        }
        first = _moves(events)[0]["args"]
        assert first["tensors"][0][:3] == ['"0\\0', "float32", [3, 4]]
        assert first["bytes"] == 48 * len(first["tensors"])
        _check_lanes(events)
        for event in events:
            if event.get("cat") == "batch":
                flows[event["id"]].append((event["ts"], event["ph"], rank))
        assert _tensors(_load(_file(path.with_name("t.json.again"), rank, size))) == ["again"]
    for ends in flows.values():  # all ranks of this host have one clock
        (_, *begin), (_, *end) = sorted(ends)
        assert (begin[0], end[0]) == ("s", "f")
        assert begin[1] < end[1]
    assert bool(flows) == (size > 1)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def _check_lanes(events: list[Event]) -> None:
    """The spans of a batch follow each other, and in no lane do two overlap."""
    by_batch: dict[tuple[int, int], dict[str, Event]] = defaultdict(dict)
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_batch[event["args"]["set"], event["args"]["batch"]][event["cat"]] = event
            by_thread[event["tid"]].append(event)
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert by_thread.keys() <= named
    for spans in by_thread.values():
        spans.sort(key=lambda span: span["ts"])
        for one, other in itertools.pairwise(spans):
            assert one["ts"] + one["dur"] <= other["ts"] + 0.01
    for lanes in by_batch.values():
        there = [lanes[lane] for lane in LANES if lane in lanes]
        assert {"wait", "move"} <= lanes.keys()
        assert [span["ts"] for span in there] == sorted(span["ts"] for span in there)
        assert all(span["dur"] >= 0 for span in there)
        wait = lanes["wait"]
        assert wait["ts"] + wait["dur"] == pytest.approx(lanes["move"]["ts"], abs=0.01)


def _alone(path: str) -> tuple[bool, bool]:
    hvd.init()
    observer = current().everyone.observer
    hvd.allreduce(np.ones(3), name="before")
    hvd.start_timeline(path)
    hvd.allreduce(np.ones(3), name="x")
    on = observer._in_flight.keeps_times
    hvd.stop_timeline()
    hvd.shutdown()
    return on, observer._in_flight.keeps_times


def test_it_costs_nothing_when_it_is_off(tmp_path: Path) -> None:
    (outcome,) = process_ranks(1, _alone, str(tmp_path / "t"))
    assert outcome.result() == (True, False)


def _exits_without_goodbye() -> None:
    hvd.init()
    hvd.allreduce(np.ones(3), name="x")


@pytest.mark.parametrize("name", ["HVDLITE_TIMELINE", "HOROVOD_TIMELINE"])
def test_a_variable_starts_it_and_the_end_of_the_process_completes_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    environ = {name: str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    for outcome in process_ranks(2, _exits_without_goodbye, environ=environ):
        outcome.result()
    for rank in range(2):
        events = _load(_file(path, rank, 2))
        assert "x" in _tensors(events)
        assert any(event["name"] == "CYCLE_START" for event in events)


def _waits(path: str) -> None:
    recording._INTERVAL_S = recording._WAITS_S = 0.01  # type: ignore[misc]
    hvd.init()
    handles = [hvd.allreduce_async(np.ones(3), name="from before")] if hvd.rank() == 0 else []
    hvd.start_timeline(path)
    if hvd.rank() == 0:
        handles += [hvd.allreduce_async(np.ones(3, np.float32), name=name) for name in ("never", "late")]
    own, is_written = Path(f"{path}.rank0"), np.zeros(1)
    while not hvd.allreduce(is_written, name="is written").any():
        is_written[0] = own.exists() and own.read_text().count('"ph":"b"') >= 3
    if hvd.rank() == 1:
        handles = [hvd.allreduce_async(np.ones(3, np.float32), name="late")]
    hvd.synchronize(handles[-1])
    hvd.shutdown()


def test_a_tensor_that_never_completes_is_there(tmp_path: Path) -> None:
    for outcome in process_ranks(2, _waits, str(tmp_path / "t")):
        outcome.result()
    events = [event for event in _load(tmp_path / "t.rank0") if event.get("cat") == "waits"]
    ended = {event["id"] for event in events if event["ph"] == "e"}
    of_name = {event["args"]["tensor"][0]: event["id"] for event in events if event["ph"] == "b"}
    assert {"from before", "never", "late"} <= of_name.keys()
    assert {name for name, which in of_name.items() if which not in ended} == {"from before", "never"}


def _dynamic(path: str) -> None:
    hvd.init()
    hvd.allreduce(np.ones(3), name="before")
    assert not list(Path(path).parent.iterdir())
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.start_timeline(path)
    hvd.allreduce(np.ones(3), name="x")
    hvd.shutdown()


def test_dynamic_waits_for_the_call_and_one_rank_may_call_alone(tmp_path: Path) -> None:
    for outcome in process_ranks(2, _dynamic, str(tmp_path / "t"), environ={"HOROVOD_TIMELINE": "DYNAMIC"}):
        outcome.result()
    assert [each.name for each in tmp_path.iterdir()] == ["t.rank0"]
    assert _tensors(_load(tmp_path / "t.rank0")) == ["x"]


def _goes_on(path: str) -> int:
    recording._INTERVAL_S = 0.01  # type: ignore[misc]
    hvd.init()
    hvd.start_timeline(path)
    own = Path(f"{path}.rank{hvd.rank()}")
    loaded = 0
    for step in range(100000):
        hvd.allreduce(np.ones(3), name=str(step % 50))
        if step % 20 == 0:
            _load(own)
            loaded += 1
        if loaded == 50:
            reached("half")
            if hvd.rank() == 0:
                pause_at("killed")
                try:
                    while True:
                        hvd.allreduce(np.ones(3), name="more")
                except hvd.PeerLost:
                    return loaded
    raise AssertionError("nobody was killed")


def test_it_can_be_loaded_at_any_instant_and_after_a_rank_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with ProcessRanks(2, _goes_on, str(path)) as ranks:
        ranks.wait_for("half")
        ranks.kill(1)
        ranks.release(0)
        assert ranks.join()[0].result() == 50
    for rank in range(2):
        assert len(_moves(_load(_file(path, rank, 2)))) > 50


def _on_a_full_disk(path: str) -> str:
    recording._INTERVAL_S = 0.01  # type: ignore[misc]
    hvd.init()
    hvd.start_timeline(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30000, resource.RLIM_INFINITY))
    recorded = current().timeline._recording
    assert recorded is not None
    steps = 0
    while recorded._thread.is_alive():
        hvd.allreduce(np.ones(3), name="x")
        steps += 1
        until(lambda: not (recorded._records and recorded._thread.is_alive()))
    hvd.allreduce(np.ones(3), name="goes on")
    hvd.stop_timeline()
    hvd.shutdown()
    return path if steps else ""


def test_a_file_that_may_not_grow_ends_with_one_line_and_the_job_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    (outcome,) = process_ranks(1, _on_a_full_disk, str(path))
    assert outcome.result() == str(path)
    assert outcome.output.count("timeline") == 1
    assert f"the timeline {path} ends here, and the job continues without it: File too large" in outcome.output
    assert _moves(_load(path))
    assert path.stat().st_size < 30000


def _where_it_cannot_be(path: str) -> str:
    hvd.init()
    try:
        hvd.start_timeline(path)
    except OSError as error:
        told = str(error)
    hvd.allreduce(np.ones(3), name="x")
    hvd.shutdown()
    return told


def test_a_file_that_cannot_be_is_an_error_of_the_call_and_a_line_of_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "t"
    (outcome,) = process_ranks(1, _where_it_cannot_be, str(path), environ={"HVDLITE_TIMELINE": str(path)})
    assert outcome.result() == f"[Errno 2] No such file or directory: '{path}'"
    assert outcome.output.count("there is no timeline") == 1
    assert f"there is no timeline: {path} cannot be written: No such file or directory" in outcome.output


def _too_much(path: str) -> tuple[int, int]:
    recording._MOST_TENSORS = 10  # type: ignore[misc]
    recording._INTERVAL_S = 1e4  # type: ignore[misc]
    hvd.init()
    hvd.start_timeline(path)
    recorded = current().timeline._recording
    assert recorded is not None
    until(lambda: "rank 0" in Path(path).read_text())  # the writer sleeps from now on
    recorded._wake.set = lambda: None  # type: ignore[method-assign]
    most = 0
    for step in range(50):
        hvd.allreduce(np.ones(3), name=str(step))
        most = max(most, len(recorded._records))
    del recorded._wake.set
    hvd.stop_timeline()
    hvd.shutdown()
    return most, recorded._dropped_in_all


def test_what_comes_faster_than_it_is_written_is_dropped_and_counted(tmp_path: Path) -> None:
    (outcome,) = process_ranks(1, _too_much, str(tmp_path / "t"))
    assert outcome.result() == (10, 40)
    events = _load(tmp_path / "t")
    assert len(_moves(events)) == 10
    assert [event["args"] for event in events if "missing" in event["name"]] == [{"dropped": 40}]
    assert "lacks 40 batches" in outcome.output


def _flood(path: str) -> int:
    hvd.init()
    arrays = [np.ones(16, np.float32) for _ in range(1000)]

    def step() -> int:
        handles = [hvd.allreduce_async_(array, name=f"weight {number}") for number, array in enumerate(arrays)]
        for handle in handles:
            hvd.synchronize(handle)
        resident: int = psutil.Process().memory_info().rss
        return resident

    before = max(step() for _ in range(5))
    hvd.start_timeline(path)
    grown = max(step() for _ in range(300)) - before
    hvd.shutdown()
    return grown


def test_it_takes_less_than_64_mib_however_much_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t"
    (outcome,) = process_ranks(1, _flood, str(path))
    assert outcome.result() < 64 << 20
    assert path.stat().st_size > 2 << 20
    _load(path)
