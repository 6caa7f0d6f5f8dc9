"""Several ranks on each of two hosts: news and decisions pass through the first rank of each host, and so do ends."""

from __future__ import annotations

import ctypes
import signal
import time

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, process_ranks, reached
from tests.harness.patience import NEVER_SILENT

# Ranks 0 and 3 are on one host, led by the root; 1, 2 and 4 on the other, led by 1.
ON_FIRST = (0, 3)
HOSTS = {rank: {"HVDLITE_HOSTID": "first" if rank in ON_FIRST else "second"} for rank in range(5)}
SIZE = len(HOSTS)
LEADER, MEMBER, ROOT, BESIDE_ROOT = 1, 4, 0, 3


def _program() -> list[float]:
    """Known, new, changed and differing tensors, in another order on each rank, and ranks that join one by one."""
    hvd.init()
    rank, results = hvd.rank(), []
    for step in range(20):
        names = [f"t{number}" for number in range(6)]
        order = np.random.default_rng(step * SIZE + rank).permutation(names)
        handles = {name: hvd.allreduce_async(np.full(2 + step // 10, rank), op=hvd.Sum, name=name) for name in order}
        results += [float(hvd.synchronize(handles[name])[0]) for name in names]
        results.append(float(hvd.allgather(np.full((rank + step) % 3, rank), name="rows").sum()))
    for _ in range(rank):
        hvd.allreduce(np.ones(1), op=hvd.Sum, name="t0 of some")
    results.append(hvd.join())
    results.append(float(hvd.allreduce(np.ones(1), op=hvd.Sum, name="t0")[0]))
    hvd.shutdown()
    return results


@pytest.mark.parametrize("page", ["1", "0"])
def test_all_ranks_run_the_same_and_get_the_right_sums(page: str) -> None:
    """With the page of each host, and without."""
    environ = {"HVDLITE_PAGE": page}
    results = [outcome.result() for outcome in process_ranks(SIZE, _program, environ=environ, environ_by_rank=HOSTS)]
    for step in range(20):
        rows = sum(rank * ((rank + step) % 3) for rank in range(SIZE))
        assert results[0][7 * step : 7 * step + 7] == [10.0] * 6 + [rows]
    assert results[0][-2:] == [SIZE - 1, SIZE]
    assert all(result == results[0] for result in results)


def _late() -> float:
    """Each rank in turn, and again, submits a tensor long after the others; returns how long it took at best."""
    hvd.init()
    took_s = []
    hvd.allreduce(np.ones(3), name="x")
    for late in (*range(SIZE), *range(SIZE)):
        if hvd.rank() == late:
            time.sleep(1.2)
        began = time.monotonic()
        hvd.allreduce(np.ones(3), name="x")
        if hvd.rank() == late:
            took_s.append(time.monotonic() - began)
    hvd.shutdown()
    return min(took_s)


def test_what_comes_late_is_not_held_back_on_top() -> None:
    outcomes = process_ranks(SIZE, _late, environ_by_rank=HOSTS)
    assert max(outcome.result() for outcome in outcomes) < 0.9  # news are held for a second at most


def _one_never_submits(missing: int) -> None:
    hvd.init()
    hvd.allreduce(np.ones(3), name="gradient")  # a known tensor: its bits can be held
    if hvd.rank() == missing:
        pause_at("elsewhere")
    hvd.allreduce(np.ones(3), name="gradient")


@pytest.mark.parametrize("missing", [LEADER, MEMBER, BESIDE_ROOT])
def test_a_stall_names_the_one_rank_that_is_late(missing: int) -> None:
    environ = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    with ProcessRanks(SIZE, _one_never_submits, missing, environ=environ, environ_by_rank=HOSTS) as ranks:
        others = [rank for rank in range(SIZE) if rank != missing]
        ranks.wait_for("elsewhere", missing)
        ranks.wait_for_end(*others)
        ranks.release(missing)
        outcomes = ranks.join()
    for outcome in outcomes:
        assert outcome.error == "Stalled"
        assert f"rank {missing} is missing gradient" in outcome.message


def _holds_the_gil(rank: int) -> None:
    hvd.init()
    hvd.allreduce(np.ones(3), name="gradient")
    if hvd.rank() == rank:
        ctypes.PyDLL(None).sleep(7)
    hvd.allreduce(np.ones(3), name="gradient")


def test_a_leader_that_holds_the_gil_is_the_first_that_is_late_and_not_lost() -> None:
    """Nothing from its host passes meanwhile, so its other ranks count as late too."""
    environ = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    outcomes = process_ranks(SIZE, _holds_the_gil, LEADER, environ=environ, environ_by_rank=HOSTS)
    for outcome in outcomes:
        assert outcome.error == "Stalled", outcome.output
        assert outcome.message.startswith(f"stalled for 2 s: rank {LEADER} is missing gradient; ")
    ended_at = [outcome.ended_at or float("inf") for outcome in outcomes]
    for rank in ON_FIRST:  # the others hear of it once it passes news on again
        assert ended_at[rank] < ended_at[LEADER]


@pytest.mark.parametrize("rank", [MEMBER, BESIDE_ROOT])
def test_another_rank_that_holds_the_gil_is_the_only_late_one(rank: int) -> None:
    environ = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    outcomes = process_ranks(SIZE, _holds_the_gil, rank, environ=environ, environ_by_rank=HOSTS)
    for outcome in outcomes:
        assert outcome.error == "Stalled", outcome.output
        assert outcome.message.startswith(f"stalled for 2 s: rank {rank} is missing gradient")
        assert outcome.message.count("missing") == 1


def _reduce_for_ever() -> None:
    hvd.init()
    hvd.barrier()
    reached("running")
    while True:
        hvd.allreduce(np.ones(3), name="x")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", [ROOT, BESIDE_ROOT, LEADER, MEMBER])
def test_a_lost_rank_is_named_by_all_others(victim: int, number: signal.Signals) -> None:
    environ = NEVER_SILENT if number == signal.SIGKILL else {}
    with ProcessRanks(SIZE, _reduce_for_ever, environ=environ, environ_by_rank=HOSTS) as ranks:
        ranks.wait_for("running")
        ranks.send_signal(victim, number)
        survivors = [rank for rank in range(SIZE) if rank != victim]
        ranks.wait_for_end(*survivors)
        ranks.kill(victim)
        outcomes = ranks.join()
    for rank in survivors:
        outcome = outcomes[rank]
        assert (outcome.error, outcome.details.get("rank")) == ("PeerLost", victim), outcome.output


def _one_leaves(leaver: int) -> int:
    hvd.init()
    hvd.allreduce(np.ones(3), name="x")
    if hvd.rank() != leaver:
        with pytest.raises(hvd.ShutDown) as caught:
            hvd.allreduce(np.ones(3), name="y")
        leaver = caught.value.rank
    hvd.shutdown()
    return leaver


@pytest.mark.parametrize("leaver", [ROOT, BESIDE_ROOT, LEADER, MEMBER])
def test_a_rank_that_leaves_is_not_taken_for_lost(leaver: int) -> None:
    outcomes = process_ranks(SIZE, _one_leaves, leaver, environ_by_rank=HOSTS)
    assert [outcome.result() for outcome in outcomes] == [leaver] * SIZE
