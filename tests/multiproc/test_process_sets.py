"""Process sets: registered on all ranks alike, used by their members, removed; and what is refused."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.members.process_set import ProcessSet as PlainProcessSet
from tests.harness import ProcessRanks, pause_at, process_ranks, reached

# Shared memory on one host, the ring and the ring over ZeroMQ on one host, and two hosts, which talk over TCP.
PLACES = {
    "shm": {},
    "ring": {rank: {"HVDLITE_PLANE": "ring"} for rank in range(4)},
    "zmq": {rank: {"HVDLITE_PLANE": "zmq"} for rank in range(4)},
    "two hosts": {rank: {"HVDLITE_HOSTID": f"host {rank // 2}"} for rank in range(4)},
}


def total(process_set: hvd.ProcessSet, name: str | None = None) -> float:
    """The sum of the members' ranks plus one, by an all-reduce among them."""
    return float(hvd.allreduce(np.full(5, hvd.rank() + 1.0), op=hvd.Sum, name=name, process_set=process_set)[0])


def _collectives_in_sets() -> str:
    hvd.init()
    edge = hvd.add_process_set([3, 0])
    middle = hvd.ProcessSet([1, 2])
    assert middle.size() is middle.rank() is middle.included() is middle.process_set_id is None
    assert hvd.add_process_set(middle) is middle
    alone = hvd.add_process_set(hvd.ProcessSet([2]))
    assert (edge.process_set_id, middle.process_set_id, alone.process_set_id) == (1, 2, 3)
    assert (edge.ranks, edge.size(), edge.included()) == ([0, 3], 2, hvd.rank() in (0, 3))
    assert repr(edge) == "ProcessSet(process_set_id=1, ranks=[0, 3], mpi_comm=None)"
    own = edge if edge.included() else middle
    other = middle if edge.included() else edge
    assert own.ranks is not None
    assert (own.rank(), other.rank()) == (own.ranks.index(hvd.rank()), None)
    for _ in range(3):
        assert total(own) == sum(own.ranks) + 2
        assert total(hvd.global_process_set) == total(hvd.global_process_set, "x") == 10
    np.testing.assert_array_equal(hvd.allgather(np.array([hvd.rank()]), process_set=own), own.ranks)
    got = hvd.broadcast(np.full(3, hvd.rank()), root_rank=own.ranks[1], process_set=own)
    np.testing.assert_array_equal(got, own.ranks[1])
    hvd.barrier(process_set=own)
    if alone.included():
        assert total(alone) == 3
    with pytest.raises(ValueError, match=f"rank {hvd.rank()} is not in process set"):
        total(other)
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(np.ones(3), root_rank=other.ranks[0], process_set=own)  # type: ignore[index]
    with pytest.raises(ValueError, match="not registered"):
        total(hvd.ProcessSet([0, 1]))
    with pytest.raises(ValueError, match="must be a ProcessSet"):
        total([0, 1])  # type: ignore[arg-type]
    hvd.barrier()
    hvd.shutdown()
    assert edge.process_set_id is edge.size() is edge.included() is hvd.global_process_set.size() is None
    return "ok"


@pytest.mark.parametrize("place", PLACES)
def test_sets_of_two_ranks_beside_each_other(place: str) -> None:
    outcomes = process_ranks(4, _collectives_in_sets, environ_by_rank=PLACES[place])
    assert [outcome.result() for outcome in outcomes] == ["ok"] * 4


def _wrong_sets() -> str:
    hvd.init()
    size = hvd.size()
    last = hvd.add_process_set([size - 1]) if size > 1 else None
    for ranks, pattern in [
        ([0, 0], "repeated"),
        ([], "at least one rank"),
        ([-1], "negative"),
        ([0, size], f"0 to {size - 1}"),
        ([0.5], "takes rank numbers"),
        ("dynamic", "takes rank numbers"),
        (range(size), "the global one"),
        *([([size - 1], "number 1")] if last else []),
    ]:
        with pytest.raises(ValueError, match=pattern):
            hvd.add_process_set(ranks)  # type: ignore[arg-type]
    if last is not None:
        with pytest.raises(ValueError, match="number 1"):
            hvd.add_process_set(last)
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
    assert total(hvd.global_process_set) == sum(range(size + 1))
    hvd.shutdown()
    with pytest.raises(hvd.HorovodInternalError, match="hvdlite has not been initialized"):
        hvd.add_process_set([0])
    return "ok"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_no_set_is_refused_and_the_session_goes_on(count: int) -> None:
    assert [outcome.result() for outcome in process_ranks(count, _wrong_sets)] == ["ok"] * count


class _Communicator:
    def Get_rank(self) -> int:
        return 0


def test_a_communicator_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match="mpi4py"):
        PlainProcessSet(_Communicator())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mpi4py"):
        hvd.init(_Communicator())  # type: ignore[arg-type]
    assert not hvd.is_initialized() or hvd.shutdown() is None


def _disagree() -> str:
    hvd.init()
    with pytest.raises(hvd.Mismatch) as caught:
        hvd.add_process_set([0, 2] if hvd.rank() == 1 else [0, 1])
    assert "rank(s) 0, 2: adds [0, 1]; rank(s) 1: adds [0, 2]" in str(caught.value)
    evens, both = hvd.add_process_set([0, 2]), hvd.add_process_set([0, 1])
    with pytest.raises(hvd.Mismatch, match="removes number 2"):
        hvd.remove_process_set(evens if hvd.rank() == 1 else both)
    with pytest.raises(hvd.Mismatch, match=r"rank\(s\) 0, 1: adds \[1, 2\]; rank\(s\) 2: removes number 1, \[0, 2\]"):
        hvd.remove_process_set(evens) if hvd.rank() == 2 else hvd.add_process_set([1, 2])
    assert both.included() is (hvd.rank() < 2)
    assert not both.included() or total(both) == 3
    hvd.barrier()
    hvd.shutdown()
    return "ok"


def test_ranks_that_want_different_sets_all_hear_of_it_and_go_on() -> None:
    assert [outcome.result() for outcome in process_ranks(3, _disagree)] == ["ok"] * 3


def _static() -> str:
    hvd.init(process_sets="dynamic")
    hvd.init()
    hvd.shutdown()
    low, high = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])
    for wrong in ([low, hvd.ProcessSet([1, 0])], [high, high], [low, [0, 1, 2]], [low, [7]]):
        with pytest.raises(ValueError, match=r"already|not within this job"):
            hvd.init(process_sets=wrong)
        assert hvd.is_initialized()
        assert low.process_set_id is None
    hvd.init(process_sets=[low, high])
    hvd.init(process_sets=[low, high])
    assert (low.process_set_id, high.process_set_id) == (1, 2)
    mine = [process_set for process_set in (high, low) if process_set.included()]
    handles = [hvd.allreduce_async(np.ones(3), name="the same", op=hvd.Sum, process_set=each) for each in mine]
    for handle in handles:
        np.testing.assert_array_equal(hvd.synchronize(handle), 2)
    hvd.barrier()  # rank 2 has nothing more to do, and its end would be that of what the others wait for
    hvd.shutdown()
    hvd.init(comm=[0, 1, 2], process_sets=[high])
    assert (low.process_set_id, high.process_set_id) == (None, 1)
    with pytest.raises(ValueError, match="process_sets"):
        hvd.init(comm=[0, 1])
    with pytest.raises(ValueError, match="dynamic"):
        hvd.init(process_sets="static")
    hvd.shutdown()
    return "ok"


def test_sets_given_to_init() -> None:
    assert [outcome.result() for outcome in process_ranks(3, _static)] == ["ok"] * 3


def _beside_blocked_ranks() -> str:
    hvd.init()
    low, high = hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])
    pending = hvd.allreduce_async(np.ones(3), name="of all") if hvd.rank() != 3 else None
    if hvd.rank() < 2:
        for _ in range(50):
            assert total(low) == 3
        reached("through")
    elif hvd.rank() == 2:
        assert total(high) == 7
    else:
        pause_at("blocked")
        assert total(high) == 7
        pending = hvd.allreduce_async(np.ones(3), name="of all")
    assert pending is not None
    np.testing.assert_array_equal(hvd.synchronize(pending), 1.0)
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("place", PLACES)
def test_a_set_does_not_wait_for_another_nor_for_the_global_one(place: str) -> None:
    with ProcessRanks(4, _beside_blocked_ranks, environ_by_rank=PLACES[place]) as ranks:
        ranks.wait_for("blocked", 3)
        ranks.wait_for("through", 0, 1)
        ranks.release(3)
        assert [outcome.result() for outcome in ranks.join()] == ["ok"] * 4


def _overlapping() -> str:
    hvd.init()
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
    mine = [each for each in (*sets, hvd.global_process_set) if each.included()]
    errors: list[BaseException] = []

    def work(process_set: hvd.ProcessSet) -> None:
        try:
            for _ in range(30):
                assert process_set.ranks is not None
                assert total(process_set) == sum(process_set.ranks) + len(process_set.ranks)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in (mine if hvd.rank() else reversed(mine))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hvd.barrier()
    hvd.shutdown()
    assert not errors, errors
    return "ok"


def test_overlapping_sets_used_from_several_threads() -> None:
    assert [outcome.result() for outcome in process_ranks(3, _overlapping)] == ["ok"] * 3


def _remove_with_work_pending() -> str:
    hvd.init()
    pair, other = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])
    pending = hvd.allreduce_async(np.ones(3), name="x", process_set=pair) if hvd.rank() == 0 else None
    assert hvd.remove_process_set(pair) is True
    assert (pair.process_set_id, pair.size(), pair.ranks) == (None, None, [0, 1])
    if pending is not None:
        with pytest.raises(hvd.HorovodInternalError, match=r"rank [01] on .* removed the process set"):
            hvd.synchronize(pending)
    with pytest.raises(ValueError, match="not registered"):
        total(pair)
    assert hvd.remove_process_set(pair) is False
    assert not other.included() or total(other) == 5
    assert hvd.add_process_set(pair).process_set_id == 1
    assert not pair.included() or total(pair) == 3
    assert total(hvd.global_process_set) == 6
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("place", PLACES)
def test_removing_a_set_fails_what_is_pending_in_it_and_nothing_else(place: str) -> None:
    outcomes = process_ranks(3, _remove_with_work_pending, environ_by_rank=PLACES[place])
    assert [outcome.result() for outcome in outcomes] == ["ok"] * 3


def _holdings() -> list[int]:
    """Descriptors, threads and segments."""
    segments = sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), segments]


def _again_and_again(times: int) -> str:
    hvd.init()
    few: list[int] = []
    for turn in range(times):
        process_set = hvd.add_process_set([0, 2])
        assert process_set.process_set_id == 1
        assert not process_set.included() or total(process_set) == 4
        assert hvd.remove_process_set(process_set)
        if turn == 1:
            few = _holdings()
    many = _holdings()
    # A thread that has ended is listed for a moment, and so is what it held: what grows is what leaks.
    assert all(after < before + 5 for before, after in zip(few, many, strict=True)), f"{few} became {many}"
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("place", ["shm", "ring"])
def test_a_hundred_sets_leave_nothing_behind(place: str) -> None:
    outcomes = process_ranks(3, _again_and_again, 100, environ_by_rank=PLACES[place])
    assert [outcome.result() for outcome in outcomes] == ["ok"] * 3
