"""Ranks that die, stall or leave while there are process sets: all ranks of the job hear which one, and in time."""

from __future__ import annotations

import os
import resource
import signal
import threading

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.control import unixlink
from hvdlite.planes.shm import part
from tests.harness import Outcome, ProcessRanks, pause_at, process_ranks, reached
from tests.harness.effort import Effort
from tests.harness.patience import NEVER_SILENT

# Shared memory and Unix sockets within one host; the ring and ZeroMQ over TCP across two.
HOSTS = {"one host": {}, "two hosts": {rank: {"HVDLITE_HOSTID": f"host {rank % 2}"} for rank in range(4)}}


def check_lost(outcomes: list[Outcome], victim: int) -> None:
    for rank in set(range(len(outcomes))) - {victim}:
        outcome = outcomes[rank]
        assert (outcome.error, outcome.details.get("rank")) == ("PeerLost", victim), outcome.output
        assert f"rank {victim} on " in outcome.message


def _wait_in_sets(victim: int) -> None:
    """All but the victim wait in their set: one with the victim, one without."""
    hvd.init()
    low, high = hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])
    if hvd.rank() == victim:
        pause_at("waiting")
    own = low if low.included() else high
    late = hvd.rank() == (3 if victim < 2 else 1)
    reached("waiting")
    if late:  # the set without the victim waits too, for this rank, which waits in another collective
        hvd.allreduce(np.ones(3), name="of all")
    hvd.allreduce(np.ones(3), name="x", process_set=own)


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_killed_rank_is_named_inside_and_outside_its_set(victim: int, hosts: str) -> None:
    with ProcessRanks(4, _wait_in_sets, victim, environ=NEVER_SILENT, environ_by_rank=HOSTS[hosts]) as ranks:
        ranks.wait_for("waiting")
        ranks.kill(victim)
        check_lost(ranks.join(), victim)


def _busy_in_sets() -> None:
    hvd.init()
    low, high = hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])
    own = low if low.included() else high
    tensor = np.ones(1 << 20, np.float32)
    hvd.allreduce_(tensor, name="x", process_set=own)
    reached("running")
    while True:
        hvd.allreduce_(tensor, name="x", process_set=own)


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("victim", [1, 2])
def test_a_rank_killed_while_bytes_move_is_named_by_all(victim: int, hosts: str) -> None:
    with ProcessRanks(4, _busy_in_sets, environ=NEVER_SILENT, environ_by_rank=HOSTS[hosts]) as ranks:
        ranks.wait_for("running")
        ranks.kill(victim)
        check_lost(ranks.join(), victim)


def _stall_in_a_set() -> None:
    hvd.init()
    pair = hvd.add_process_set([1, 2])
    if hvd.rank() == 0:
        pause_at("not in the set")
        hvd.allreduce(np.ones(3), name="after the end")
    if hvd.rank() == 2:
        pause_at("elsewhere")
    hvd.allreduce(np.ones(3), name="gradient", process_set=pair)


def test_a_stall_in_a_set_names_the_job_rank_on_all_ranks() -> None:
    environ = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "1", "HVDLITE_STALL_CHECK_TIME_SECONDS": "0.5"}
    with ProcessRanks(3, _stall_in_a_set, environ=environ) as ranks:
        ranks.wait_for("elsewhere", 2)
        ranks.wait_for("not in the set", 0)
        ranks.wait_for_end(1)
        ranks.release(0, 2)
        outcomes = ranks.join()
    for outcome in outcomes:
        assert outcome.error == "Stalled", outcome.output
        assert "rank 2 is missing gradient" in outcome.message
    assert "rank(s) 2 did not submit gradient" in outcomes[1].output


def _leave_with_sets() -> str:
    hvd.init()
    pair = hvd.add_process_set([1, 2])
    if hvd.rank() == 0:
        pause_at("waiting")
        hvd.shutdown()
        return "left"
    if hvd.rank() == 1:
        pending = hvd.allreduce_async(np.ones(3), name="x", process_set=pair)
        reached("waiting")
        with pytest.raises(hvd.ShutDown) as caught:
            hvd.synchronize(pending)
        assert caught.value.rank == 0
    else:
        reached("waiting")
        with pytest.raises(hvd.ShutDown):
            hvd.allreduce(np.ones(3), name="of all")
        with pytest.raises(hvd.ShutDown):
            hvd.allreduce(np.ones(3), name="y", process_set=pair)
    hvd.shutdown()
    return "told"


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_rank_that_leaves_ends_all_sets_also_those_it_is_not_in(hosts: str) -> None:
    with ProcessRanks(3, _leave_with_sets, environ_by_rank=HOSTS[hosts]) as ranks:
        ranks.wait_for("waiting")
        ranks.release(0)
        assert [outcome.result() for outcome in ranks.join()] == ["left", "told", "told"]


def _busy_until_one_leaves() -> int:
    hvd.init()
    trio = hvd.add_process_set([0, 1, 3])
    if not trio.included():
        pause_at("running")
        hvd.shutdown()
        return 0
    tensor, turns = np.ones(1 << 18, np.float32), 0
    with pytest.raises(hvd.ShutDown, match="rank 2"):  # noqa: PT012 - some turn raises
        while True:
            hvd.allreduce_(tensor, name="x", op=hvd.Max, process_set=trio)
            turns += 1
            if turns == 10:
                reached("running")
    hvd.shutdown()
    return turns


@pytest.mark.parametrize("hosts", HOSTS)
def test_what_a_set_agreed_before_a_rank_left_is_run_by_all_its_members(hosts: str) -> None:
    with ProcessRanks(4, _busy_until_one_leaves, environ_by_rank=HOSTS[hosts]) as ranks:
        ranks.wait_for("running")
        ranks.release(2)
        turns = [outcome.result() for outcome in ranks.join()]
    assert turns[0] == turns[1] == turns[3] >= 10


def _sessions_with_sets(times: int) -> str:
    odd = hvd.ProcessSet([1])
    for _ in range(times):
        hvd.init(process_sets=[odd])
        both = hvd.add_process_set([0, 1])
        assert (odd.process_set_id, both.process_set_id) == (1, 2)
        assert not both.included() or hvd.allreduce(np.ones(3), op=hvd.Sum, process_set=both)[0] == 2
        hvd.barrier()
        hvd.shutdown()
    return "ok"


def test_sessions_with_sets_follow_each_other() -> None:
    assert [outcome.result() for outcome in process_ranks(3, _sessions_with_sets, 10)] == ["ok"] * 3


def _exit_without_shutdown() -> str:
    hvd.init()
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        hvd.allreduce(np.ones(3), process_set=pair)
    pause_at("end")  # a rank that is gone ends what the others still do
    return "ok"


def test_exiting_without_shutdown_is_clean_with_sets() -> None:
    with ProcessRanks(3, _exit_without_shutdown) as ranks:
        ranks.wait_for("end")
        ranks.release()
        for outcome in ranks.join():
            assert (outcome.result(), outcome.exit_code, outcome.output) == ("ok", 0, "")


def _no_descriptors(victim: int) -> str:
    hvd.init()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hvd.rank() == victim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    with pytest.raises(
        hvd.HorovodInternalError, match=rf"process set \[1, 2\] was not added.* rank {victim}: .*Too many"
    ):
        hvd.add_process_set([1, 2])
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    pair = hvd.add_process_set([1, 2])
    assert pair.process_set_id == 1
    assert not pair.included() or hvd.allreduce(np.ones(3), op=hvd.Sum, process_set=pair)[0] == 2
    hvd.barrier()
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("victim", [1, 2])
def test_a_set_that_one_member_cannot_open_is_added_nowhere(victim: int) -> None:
    outcomes = process_ranks(3, _no_descriptors, victim, environ={"HVDLITE_START_TIMEOUT": "3"})
    assert [outcome.result() for outcome in outcomes] == ["ok"] * 3


IDLE_S = 5.0


def _idle() -> str:
    hvd.init()
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 1], [0], [1])]
    for process_set in sets:
        if process_set.included():
            hvd.allreduce(np.ones(3), process_set=process_set)
    effort = Effort()
    pause_at("idle")
    excess = effort.excess(wakes=100, within_s=IDLE_S)
    hvd.shutdown()
    return excess


def test_idle_sets_use_no_cpu() -> None:
    with ProcessRanks(3, _idle) as ranks:
        ranks.wait_for("idle")
        threading.Event().wait(IDLE_S)
        ranks.release()
        for outcome in ranks.join():
            assert outcome.result() == ""


_STEPS = {"dial": (unixlink.UnixLink, "dial"), "fetch": (part, "fetch"), "serve": (part.SegmentOffer, "serve")}


def _stop_while_connecting(victim: int, step: str, number: int) -> None:
    """The victim stops itself, or kills itself, before a step that its neighbour waits for without a collective."""
    hvd.init()
    if hvd.rank() == victim:
        where, name = _STEPS[step]

        def stop(*_: object, **__: object) -> None:
            os.kill(os.getpid(), number)
            threading.Event().wait()  # the kernel stops a thread that goes on at some moment only

        setattr(where, name, stop)
    hvd.add_process_set([0, 1])


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize(("victim", "step"), [(1, "dial"), (1, "fetch"), (0, "serve")])
def test_a_rank_that_is_lost_while_the_members_of_a_set_connect_is_named_by_all(
    victim: int, step: str, number: signal.Signals
) -> None:
    with ProcessRanks(3, _stop_while_connecting, victim, step, int(number)) as ranks:
        others = [rank for rank in range(3) if rank != victim]
        ranks.wait_for_end(*others)
        ranks.kill(victim)
        outcomes = ranks.join()
    check_lost(outcomes, victim)
    for rank in others:
        assert ("has been stopped for" in outcomes[rank].message) == (number == signal.SIGSTOP)
