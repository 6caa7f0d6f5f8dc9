"""Handles and names: what a handle keeps alive and for how long, and how tensors without a name find each other."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, process_ranks, reached
from tests.harness.patience import PATIENCE_S, STALLED


@pytest.fixture
def alone() -> Any:
    """A session of one rank, without a launcher."""
    hvd.init()
    yield
    hvd.shutdown()


def test_a_handle_is_synchronized_once(alone: None) -> None:
    for handle in (
        hvd.allreduce_async(np.ones(3)),
        hvd.grouped_allreduce_async([np.ones(3), np.ones(2)]),
        hvd.grouped_allgather_async([np.ones(3)]),
        hvd.alltoall_async(np.ones(3)),
        hvd.reduce_async(np.ones(3), 0),
    ):
        assert hvd.synchronize(handle) is not None
        assert hvd.synchronize(handle) is None
        with pytest.raises(ValueError, match="synchronized once"):
            hvd.poll(handle)


def test_a_group_that_comes_again_is_asked_for_as_before(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("5", "x" * 4032)  # the longest one leaves no room for a number that is a user's
    for name in names:
        hvd.grouped_allreduce([np.ones(3), np.ones(2)], name=name)
    for name in names:  # with tensors of other shapes and dtypes
        results = hvd.grouped_allreduce([np.full(3, 1), np.full(3, 2)], name=name)
        assert [result.tolist() for result in results] == [[1] * 3, [2] * 3]
    with pytest.raises(ValueError, match="must be a string"):
        hvd.grouped_allreduce([np.ones(3), np.ones(3)], name=5)  # type: ignore[arg-type]
    monkeypatch.setattr("hvdlite.ops.submit.Request", None)  # no new ones can be made
    results = hvd.grouped_allreduce([np.full(3, 1), np.full(3, 2)], name="5")
    assert [result.tolist() for result in results] == [[1] * 3, [2] * 3]


def test_a_group_of_no_tensors_is_done_when_all_ranks_have_given_it(alone: None) -> None:
    for start in (hvd.grouped_allreduce_async, hvd.grouped_allgather_async, hvd.grouped_reducescatter_async):
        handle = start([])
        assert hvd.synchronize(handle) == []
        assert hvd.synchronize(handle) is None


@pytest.mark.parametrize("not_a_handle", [None, 7, "x", [], np.ones(3)], ids=repr)
def test_what_is_no_handle_is_refused(alone: None, not_a_handle: Any) -> None:
    for function in (hvd.poll, hvd.synchronize):
        with pytest.raises(ValueError, match="not a handle"):
            function(not_a_handle)


def _meet_rank_1(start: Any, name: str) -> Any:
    """``start(name)`` on both ranks, on rank 1 only once rank 0 has looked at its handle, which is returned."""
    handle = None
    if hvd.rank() == 0:
        handle = start(name)
        assert not hvd.poll(handle)
    hvd.barrier()  # overtakes the tensor that is waiting
    return start(name) if handle is None else handle


def _poll_and_group() -> str:
    hvd.init()
    handle = _meet_rank_1(lambda name: hvd.allreduce_async(np.ones(3), name=name, op=hvd.Sum), "one")
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.poll(handle)
    np.testing.assert_array_equal(hvd.synchronize(handle), 2)
    tensors = [np.full(3, hvd.rank(), dtype) for dtype in ("f4", "i8", "f2")]
    handle = _meet_rank_1(lambda name: hvd.grouped_allreduce_async_(tensors, name=name, op=hvd.Max), "many")
    results = hvd.synchronize(handle)
    assert all(one is tensor for one, tensor in zip(results, tensors, strict=True))
    assert [one.tolist() for one in results] == [[1] * 3] * 3
    hvd.shutdown()
    return "ok"


def _freed(thing: Any) -> threading.Event:
    """Returns an event that is set when ``thing`` is freed, in whichever thread drops it last."""
    event = threading.Event()
    weakref.finalize(thing, event.set)
    return event


def _what_a_handle_keeps_alive() -> str:
    """The input until the collective is done, the result until it is handed out; all without the cycle collector."""
    hvd.init()
    gc.disable()
    for is_dropped in (True, False):
        source = np.full(1000, hvd.rank() + 1.0)
        if hvd.rank() == 1:
            hvd.barrier()
        source_is_freed = _freed(source)
        handle = hvd.allreduce_async(source, name="x", op=hvd.Sum)
        handle_is_freed = _freed(handle)
        del source
        if hvd.rank() == 0:
            assert not source_is_freed.is_set()
            hvd.barrier()
        if is_dropped:
            del handle
            hvd.allreduce(np.ones(1))
        else:
            result = hvd.synchronize(handle)
            np.testing.assert_array_equal(result, 3)
            result_is_freed = _freed(result)
            del result
            assert result_is_freed.wait(PATIENCE_S)
            assert hvd.synchronize(handle) is None
            del handle
        assert source_is_freed.wait(PATIENCE_S)
        assert handle_is_freed.wait(PATIENCE_S)
    hvd.shutdown()
    return "ok"


def _ten_thousand() -> str:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for _ in range(2):  # the second time all of them are known
        order = np.random.default_rng(rank).permutation(10_000)
        handles = {i: hvd.allreduce_async(np.full(2, i + rank), name=f"t{i}", op=hvd.Sum) for i in order}
        for i, handle in handles.items():
            assert hvd.synchronize(handle).tolist() == [size * i + sum(range(size))] * 2
    hvd.shutdown()
    return "ok"


def _names_in_flight() -> str:
    hvd.init()
    rank = hvd.rank()
    other = hvd.add_process_set([0])
    if rank == 0:
        waiting = hvd.allreduce_async(np.ones(3), name="x[1]", op=hvd.Sum)
        for call in (
            lambda: hvd.allreduce_async(np.ones(5), name="x[1]"),
            lambda: hvd.broadcast(np.ones(5), 0, name="x[1]"),
            lambda: hvd.grouped_allreduce_async([np.ones(1)] * 3, name="x"),
            lambda: hvd.grouped_allgather([np.ones(1)] * 3, name="x"),
        ):
            with pytest.raises(hvd.DuplicateName, match=r"'x\[1\]' is already in flight on this rank"):
                call()
        assert not hvd.poll(waiting)
        np.testing.assert_array_equal(hvd.allreduce(np.ones(2), name="x[1]", process_set=other), 1)
    hvd.barrier()
    if rank != 0:
        waiting = hvd.allreduce_async(np.ones(3), name="x[1]", op=hvd.Sum)
    np.testing.assert_array_equal(hvd.synchronize(waiting), hvd.size())
    for results in (hvd.grouped_allreduce([np.ones(1)] * 3, name="x"), hvd.grouped_allgather([np.ones(1)] * 3, "x")):
        assert len(results) == 3  # nothing of the refused groups was left in flight
    hvd.shutdown()
    return "ok"


def _automatic_names() -> str:
    """Each kind counts for itself, and so does each process set and each pair of ranks."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    pair = hvd.add_process_set([0, size - 1])
    members = [rank] if pair.included() else []
    kinds = {
        "gathers": lambda: [hvd.allgather_async(np.full(1, rank)) for _ in range(3)],
        "sums": lambda: [hvd.allreduce_async(np.full(2, rank), op=hvd.Sum) for _ in range(5)],
        "groups": lambda: [hvd.grouped_allgather_async([np.full(1, rank), np.full(1, 7)]) for _ in range(2)],
        "roots": lambda: [hvd.broadcast_async(np.full(2, rank), root) for root in range(size)],
        "in the set": lambda: [hvd.allreduce_async(np.full(1, rank), op=hvd.Max, process_set=pair) for _ in members],
        "around": lambda: [hvd.send_async(np.full(1, rank), (rank + 1) % size)],
        "back": lambda: [hvd.recv_async(np.empty(1, int), (rank - 1) % size)],
    }
    for turn in range(3):
        order = np.random.default_rng([turn, rank]).permutation(list(kinds))
        handles = {kind: kinds[kind]() for kind in order}
        results = {kind: [hvd.synchronize(handle) for handle in handles[kind]] for kind in reversed(order)}
        for gathered in results["gathers"]:
            assert gathered.tolist() == list(range(size))
        for total in results["sums"]:
            assert total.tolist() == [sum(range(size))] * 2
        for gathered, sevens in results["groups"]:
            assert (gathered.tolist(), sevens.tolist()) == (list(range(size)), [7] * size)
        assert [result[0] for result in results["roots"]] == list(range(size))
        assert [result.tolist() for result in results["in the set"]] == [[size - 1] for _ in members]
        assert results["back"][0].tolist() == [(rank - 1) % size]
    if rank == 1:
        hvd.allgather_async(np.ones(1))  # which the others begin later than what follows
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == size
    if rank != 1:
        hvd.allgather_async(np.ones(1))
    hvd.barrier()
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize(
    ("work", "size"),
    [
        (_poll_and_group, 2),
        (_what_a_handle_keeps_alive, 2),
        (_ten_thousand, 2),
        (_names_in_flight, 2),
        (_automatic_names, 3),
    ],
)
def test_in_a_job(work: Any, size: int) -> None:
    outcomes = process_ranks(size, work, environ=STALLED)
    assert [outcome.result() for outcome in outcomes] == ["ok"] * size


def _open_handles_of_a_lost_rank() -> list[Any]:
    hvd.init()
    if hvd.rank() == 2:
        pause_at("ready")  # and killed here
    single = [hvd.allreduce_async(np.ones(3)) for _ in range(3)]
    group = hvd.grouped_allreduce_async([np.ones(3)] * 2)
    reached("ready")
    seen = []
    for handle in (*single, group):
        with pytest.raises(hvd.PeerLost) as caught:
            hvd.synchronize(handle)
        seen.append(caught.value.rank)
        assert hvd.synchronize(handle) is None
    return seen


def test_every_open_handle_hears_of_a_lost_rank() -> None:
    with ProcessRanks(3, _open_handles_of_a_lost_rank) as ranks:
        ranks.wait_for("ready")
        ranks.kill(2)
        outcomes = ranks.join()
    assert [outcome.result() for outcome in outcomes[:2]] == [[2] * 4] * 2
