"""Statistics of real ranks: the same batches on all of them, and on rank 0 the rank that came last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.engine.observer import Observer, Statistics
from hvdlite.groups.group import Group
from hvdlite.negotiation.delays.arrival import Arrival
from hvdlite.negotiation.replica import Work
from hvdlite.session import current
from tests.harness import process_ranks

_COUNTED = (10, 11, 12)


class BatchRecord(NamedTuple):
    """What is checked of a batch."""

    number: int
    tensors: int
    nbytes: int
    arrival: Arrival | None
    sent_at: float
    agreed_at: float
    moved_at: float
    done_at: float
    waited_s: float


def _records_of(observer: Observer) -> list[BatchRecord]:
    """Gets a record of each batch from now on."""
    found: list[BatchRecord] = []

    def add(work: Work) -> None:
        found.append(BatchRecord(*(getattr(work, name) for name in BatchRecord._fields)))

    observer.subscribe(add)
    return found


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.001)


def _until_heard(observer: Observer, rank: int) -> None:
    """Returns when rank 0, which is this one, has heard of ``rank`` for what it decides next."""
    _until(lambda: (arrival := observer.arrival) is not None and arrival[0] == rank)


def _until_submitted(group: Group, handle: Any) -> None:
    """Returns when a turn of this rank has submitted ``handle``."""
    _until(lambda: handle.was_taken_up)
    with group._turn_lock:  # the turn has ended
        pass


def _take_turns(folder: str) -> tuple[list[BatchRecord], list[BatchRecord]]:
    """In some batches rank 0 waits until rank 1 has submitted, in others rank 1 until rank 0 has heard of itself."""
    hvd.init()
    group = current().everyone
    rank, array, observer = hvd.rank(), np.ones(1000, np.float32), group.observer
    hvd.allreduce_(array, name="x")
    records = _records_of(observer)
    for step in range(3):
        submitted = Path(folder, f"submitted {step}")
        if rank == 0:
            _until(submitted.exists)
            if group._link.page is None:  # else it hears of rank 1 in its next turn, and when that was
                _until_heard(observer, 1)
            hvd.allreduce_(array, name="x")
        else:
            handle = hvd.allreduce_async_(array, name="x")
            _until_submitted(group, handle)
            submitted.touch()
            hvd.synchronize(handle)
    middle = len(records)
    for step in range(3):
        heard = Path(folder, str(step))
        if rank == 0:
            handle = hvd.allreduce_async_(array, name="x")
            _until_heard(observer, 0)
            heard.touch()
            hvd.synchronize(handle)
        else:
            _until(heard.exists)
            hvd.allreduce_(array, name="x")
    hvd.shutdown()
    return records[:middle], records[middle:]


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_rank_0_knows_who_came_last_and_all_ranks_number_batches_alike(hosts: str, tmp_path: Path) -> None:
    environ = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)}
    root, other = (
        outcome.result() for outcome in process_ranks(2, _take_turns, str(tmp_path), environ_by_rank=environ)
    )
    for last, (of_root, of_other) in enumerate(zip(root, other, strict=True)):
        assert len(of_root) == 3
        assert [record.number for record in of_root] == [record.number for record in of_other]
        for record in of_root:
            assert record.arrival is not None
            first_rank, first_at, last_rank, last_at, late_s = record.arrival
            assert (first_rank, last_rank) == (1 - last, last)
            assert late_s == last_at - first_at > 0
            assert first_at < last_at <= record.agreed_at
        assert [record.arrival for record in of_other] == [None] * 3
        for record in of_root + of_other:
            assert (record.tensors, record.nbytes) == (1, 4000)
            assert record.sent_at <= record.agreed_at <= record.moved_at < record.done_at
            assert record.waited_s >= 0


def _count() -> tuple[Statistics, Statistics, Statistics, list[BatchRecord], list[float], list[float]]:
    members = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[members])
    group = current().everyone
    hvd.barrier()
    before, records = group.statistics(), _records_of(group.observer)
    arrays = [np.ones(count, np.float64) for count in _COUNTED]
    handles = [hvd.allreduce_async_(array, name=str(number)) for number, array in enumerate(arrays)]
    for handle in handles:
        hvd.synchronize(handle)
    after, counted = group.statistics(), records.copy()
    records.clear()
    for _ in range(20):
        hvd.allreduce_(arrays[0], name="waited for")
    waited = [record.waited_s for record in records]
    records.clear()
    for _ in range(3):
        handle = hvd.allreduce_async_(arrays[0], name="polled")
        while not hvd.poll(handle):  # nobody waits for it
            threading.Event().wait(0.001)
        hvd.synchronize(handle)
    polled = [record.waited_s for record in records]
    if members.included():
        hvd.allreduce_(arrays[2], name="in the set", process_set=members)
        of_set = current().group_of(members).statistics()
    else:
        of_set = before
    hvd.barrier()
    hvd.shutdown()
    return before, after, of_set, counted, waited, polled


def test_statistics_are_those_of_one_group() -> None:
    for rank, outcome in enumerate(process_ranks(3, _count)):
        before, after, of_set, records, waited, polled = outcome.result()
        assert 1 <= after.batches - before.batches == len(records) <= len(_COUNTED)
        assert sum(record.tensors for record in records) == len(_COUNTED)
        assert sum(record.nbytes for record in records) == 8 * sum(_COUNTED)
        assert after.in_flight == before.in_flight == 0
        assert after.moved_s > before.moved_s
        assert after.planes == {"cpu": "shm"}
        assert after.counters["copied_bytes"] > before.counters["copied_bytes"]
        assert len(waited) == 20
        assert any(waited)  # not all, as a batch may be done before its caller gets to wait
        assert polled == [0.0] * 3
        if rank < 2:
            assert of_set.batches == 1
