"""Ranks that die, stop, hang or fall silent: every other rank hears which one, and in time."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import threading
import time
import traceback

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, process_ranks, reached
from tests.harness.effort import Effort
from tests.harness.patience import NEVER_SILENT


def _busy() -> None:
    """All-reduces without end: whenever a rank dies, some other is in the middle of one."""
    hvd.init()
    tensor = np.ones(1 << 22, np.float32)
    hvd.allreduce_(tensor, name="x")
    reached("running")
    while True:
        hvd.allreduce_(tensor, name="x")


SHORT_S = 1.0


def _stopped_twice() -> None:
    """Reduces in two sessions; the first, in which nobody is lost, ends after a reduction that took long."""
    os.environ.update(NEVER_SILENT)
    hvd.init()
    hvd.barrier()
    reached("running")
    was_long = is_over = False
    while not is_over:
        began = time.monotonic()
        is_over = bool(hvd.allreduce(np.array([was_long]), op=hvd.Max, name="x"))
        was_long = was_long or time.monotonic() - began > SHORT_S
    hvd.shutdown()
    for name in NEVER_SILENT:
        del os.environ[name]
    hvd.init()
    hvd.barrier()
    reached("resumed")
    while True:
        hvd.allreduce(np.ones(3), name="x")


def _waiting(victim: int) -> None:
    """All but the victim wait in a collective that cannot happen."""
    hvd.init()
    hvd.barrier()
    reached("running")
    if hvd.rank() == victim:
        pause_at("here")
    hvd.allreduce(np.ones(3), name="x")


# One host: shared memory and Unix sockets. Three hosts: the ring and ZeroMQ, both over TCP. Two hosts: all of it.
HOSTS = {
    "one host": {},
    "two hosts": {rank: {"HVDLITE_HOSTID": f"host {rank // 2}"} for rank in range(3)},
    "three hosts": {rank: {"HVDLITE_HOSTID": f"host {rank}"} for rank in range(3)},
}

WITH_ZMQ = {**HOSTS, "zmq": {rank: {"HVDLITE_PLANE": "zmq"} for rank in range(3)}}


@pytest.mark.parametrize("hosts", WITH_ZMQ)
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("is_busy", [True, False], ids=["moving", "waiting"])
def test_a_killed_rank_is_named_by_all_others_at_once(victim: int, hosts: str, is_busy: bool) -> None:
    work, arguments = (_busy, ()) if is_busy else (_waiting, (victim,))
    with ProcessRanks(3, work, *arguments, environ=NEVER_SILENT, environ_by_rank=WITH_ZMQ[hosts]) as ranks:
        ranks.wait_for("running")
        ranks.kill(victim)
        outcomes = ranks.join()
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        outcome = outcomes[rank]
        assert (outcome.error, outcome.details.get("rank")) == ("PeerLost", victim), outcome.output
        assert f"rank {victim} on " in outcome.message


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_stopped_rank_is_lost_and_a_short_stop_is_not(hosts: str) -> None:
    with ProcessRanks(2, _stopped_twice, environ_by_rank=HOSTS[hosts]) as ranks:
        ranks.wait_for("running")
        ranks.send_signal(1, signal.SIGSTOP)
        threading.Event().wait(1.5 * SHORT_S)
        ranks.send_signal(1, signal.SIGCONT)
        ranks.wait_for("resumed")
        ranks.send_signal(1, signal.SIGSTOP)
        ranks.wait_for_end(0)
        ranks.send_signal(1, signal.SIGCONT)
        ranks.send_signal(1, signal.SIGKILL)
        survivor = ranks.join()[0]
    assert (survivor.error, survivor.details.get("rank")) == ("PeerLost", 1)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_rank_that_goes_on_reports_what_the_others_have_reported(victim: int) -> None:
    others = [rank for rank in range(3) if rank != victim]
    with ProcessRanks(3, _busy, environ={"HVDLITE_PEER_TIMEOUT": "1"}) as ranks:
        ranks.wait_for("running")
        ranks.send_signal(victim, signal.SIGSTOP)
        ranks.wait_for_end(*others)
        ranks.send_signal(victim, signal.SIGCONT)
        outcomes = ranks.join()
    assert {(outcome.error, outcome.details.get("rank")) for outcome in outcomes} == {("PeerLost", victim)}
    for rank in (others[0], victim):
        assert "has been stopped for 1." in outcomes[rank].message


def _hang(seconds: int) -> str:
    hvd.init()
    hvd.allreduce(np.ones(3), name="first")
    if hvd.rank() == 1:
        ctypes.PyDLL(None).sleep(seconds)  # holds the GIL: no Python thread of this rank runs
    hvd.allreduce(np.ones(3), name="second")
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_rank_that_holds_the_gil_is_late_and_not_dead(hosts: str) -> None:
    environ = {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1"}
    outcomes = process_ranks(2, _hang, 5, environ=environ, environ_by_rank=HOSTS[hosts])
    assert [outcome.result() for outcome in outcomes] == ["ok", "ok"]
    assert "rank(s) 1 did not submit second" in outcomes[0].output


def _never_submits() -> None:
    hvd.init()
    if hvd.rank() == 2:
        pause_at("elsewhere")
    hvd.allreduce(np.ones(3), name="gradient")


def test_a_missing_tensor_ends_the_job_after_the_limit_on_all_ranks() -> None:
    with ProcessRanks(3, _never_submits, environ={"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "2"}) as ranks:
        ranks.wait_for("elsewhere", 2)
        ranks.wait_for_end(0, 1)
        ranks.release(2)
        outcomes = ranks.join()
    for outcome in outcomes:
        assert outcome.error == "Stalled"
        assert "rank 2 is missing gradient" in outcome.message


def _raise_on_one() -> None:
    hvd.init()
    hvd.allreduce(np.ones(3), name="x")
    if hvd.rank() == 1:
        raise RuntimeError("a bug in the training script")
    hvd.allreduce(np.ones(3), name="x")


def test_a_rank_that_ends_by_an_exception_is_named() -> None:
    outcomes = process_ranks(3, _raise_on_one)
    assert outcomes[1].error == "RuntimeError"
    for rank in (0, 2):
        assert (outcomes[rank].error, outcomes[rank].details["rank"]) == ("PeerLost", 1)


def _leave_a_child() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        child = os.fork()
        if child == 0:
            signal.pause()
        reached(str(child))
        os._exit(0)
    hvd.allreduce(np.ones(3), name="x")


def test_a_dead_rank_is_noticed_although_a_child_of_it_lives() -> None:
    with ProcessRanks(2, _leave_a_child, environ=NEVER_SILENT) as ranks:
        ranks.wait_for_end(0)
        (child,) = ranks.points(1)
        os.kill(int(child), signal.SIGKILL)  # it holds the channel of rank 1 open, too
        survivor = ranks.join()[0]
    assert (survivor.error, survivor.details.get("rank")) == ("PeerLost", 1)


def _fail_again_and_again() -> int:
    hvd.init()
    depths = []
    pause_at("begun")
    for _ in range(50):
        with pytest.raises(hvd.PeerLost) as caught:
            hvd.allreduce(np.ones(3))
        depths.append(len(traceback.extract_tb(caught.tb)))
    assert pickle.loads(pickle.dumps(caught.value)).rank == 0
    return max(depths) - min(depths)


def test_an_error_that_is_raised_often_does_not_grow() -> None:
    with ProcessRanks(2, _fail_again_and_again) as ranks:
        ranks.wait_for("begun")
        ranks.kill(0)
        ranks.release(1)
        assert ranks.join()[1].result() < 20


IDLE_S = 6.0


def _idle() -> str:
    hvd.init()
    hvd.allreduce(np.ones(3))
    effort = Effort()
    pause_at("idle")
    excess = effort.excess(wakes=100, within_s=IDLE_S)
    hvd.shutdown()
    return excess


@pytest.mark.parametrize("hosts", HOSTS)
def test_an_idle_job_uses_no_cpu(hosts: str) -> None:
    with ProcessRanks(2, _idle, environ_by_rank=HOSTS[hosts]) as ranks:
        ranks.wait_for("idle")
        threading.Event().wait(IDLE_S)
        ranks.release()
        outcomes = ranks.join()
    for outcome in outcomes:
        assert outcome.result() == ""
