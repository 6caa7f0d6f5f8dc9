"""Control links across hosts that are reset, cut off, stopped and starved, under real processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.network import drop, drop_none, in_private_network, reset

PORTS = {rank: range(40000 + 10 * rank, 40010 + 10 * rank) for rank in range(3)}
HOSTS = {
    rank: {"HVDLITE_HOSTID": f"host {rank}", "HVDLITE_PORT_RANGE": f"{ports[0]}-{ports[-1]}"}
    for rank, ports in PORTS.items()
}


def _reduce_until_told() -> int:
    """Reduces until rank 0 is told to stop; returns how often, after checking every sum.

    The end of each reduction that takes long is a point, "resumed 1" and so on.
    """
    hvd.init()
    steps = outages = 0
    reached("running")
    stop = threading.Event()
    if hvd.rank() == 0:
        threading.Thread(target=lambda: (pause_at("ready to stop"), stop.set()), daemon=True).start()
    while True:
        begun = time.monotonic()
        stopping = hvd.allreduce(np.array([float(stop.is_set()), steps, 1.0]), op=hvd.Sum, name="x")
        assert stopping[1:].tolist() == [steps * hvd.size(), hvd.size()]
        steps += 1
        if time.monotonic() - begun > 2.0:
            outages += 1
            reached(f"resumed {outages}")
        if stopping[0]:
            break
    hvd.shutdown()
    return steps


def _count_of(ranks: ProcessRanks) -> list[int]:
    ranks.release(0)
    return [outcome.result() for outcome in ranks.join()]


@in_private_network
def test_resets_of_the_control_links_lose_nothing_and_nobody() -> None:
    with ProcessRanks(3, _reduce_until_told, environ_by_rank=HOSTS) as ranks:
        ranks.wait_for("running")
        resets = 0
        for _ in range(15):
            resets += reset(f"dport >= :{PORTS[0][0]} and dport <= :{PORTS[0][-1]}") > 0
            threading.Event().wait(0.2)
        counts = _count_of(ranks)
    assert resets > 10
    assert counts[0] > 15
    assert len(set(counts)) == 1


def _dropped(*directions: tuple[int, int]) -> list[str]:
    """Returns matches for all packets in these directions: to the ports of one rank, from those of the other."""
    return [
        match
        for source, target in directions
        for match in (
            f"tcp dport {PORTS[target][0]}-{PORTS[target][-1]}",
            f"tcp sport {PORTS[source][0]}-{PORTS[source][-1]}",
        )
    ]


def _wait_for_what_never_comes() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        pending = hvd.allreduce_async(np.ones(3), name="only on rank 1")
        reached("running")
        with pytest.raises(hvd.PeerLost):
            hvd.synchronize(pending)
    else:
        reached("running")
    hvd.allreduce(np.ones(3), name="x")  # on rank 1 it fails at once


CUTS = {"both ways": [(0, 1), (1, 0)], "from rank 0": [(0, 1)], "to rank 0": [(1, 0)]}


@pytest.mark.parametrize("directions", CUTS.values(), ids=CUTS)
@in_private_network
def test_two_sides_that_are_cut_off_from_each_other_both_end(directions: list[tuple[int, int]]) -> None:
    with ProcessRanks(2, _wait_for_what_never_comes, environ_by_rank=HOSTS) as ranks:
        ranks.wait_for("running")
        drop(*_dropped(*directions))
        outcomes = ranks.join()
    for rank, outcome in enumerate(outcomes):
        assert (outcome.error, outcome.details.get("rank")) == ("PeerLost", 1 - rank), outcome.output
        assert "its host could not be reached for 3.0 s" in outcome.message


@in_private_network
def test_a_network_that_is_away_for_less_than_the_timeout_evicts_nobody() -> None:
    """Connections end after 60 % of the time-out, and are made again in the rest of it."""
    with ProcessRanks(2, _reduce_until_told, environ={"HVDLITE_PEER_TIMEOUT": "12"}, environ_by_rank=HOSTS) as ranks:
        ranks.wait_for("running")
        for number in (1, 2):
            drop(*_dropped((0, 1), (1, 0)))
            threading.Event().wait(7.7)
            drop_none()  # which may take seconds beside tests that make and remove networks
            ranks.wait_for(f"resumed {number}")
        counts = _count_of(ranks)
    assert counts[0] == counts[1] > 2


def _outlive() -> str:
    """Returns the error of a reduction, but only once told to: until then the others can still talk to this rank."""
    hvd.init()
    reached("running")
    error = "none"
    try:
        while True:
            hvd.allreduce(np.ones(3), name="x")
    except hvd.HorovodInternalError as caught:
        error = f"{type(caught).__name__}: {caught}"
    reached("failed")
    pause_at("outlived")
    return error


@pytest.mark.parametrize("stopped", [0, 1])
def test_who_wakes_after_being_given_up_finds_itself_out(stopped: int) -> None:
    with ProcessRanks(3, _outlive, environ_by_rank=HOSTS) as ranks:
        ranks.wait_for("running")
        ranks.send_signal(stopped, signal.SIGSTOP)
        survivors = [rank for rank in range(3) if rank != stopped]
        ranks.wait_for("failed", *survivors)
        ranks.send_signal(stopped, signal.SIGCONT)
        ranks.wait_for("failed", stopped)
        ranks.release()
        errors = [outcome.result() for outcome in ranks.join()]
    for rank in survivors:
        assert errors[rank].startswith(f"PeerLost: rank {stopped} on ")
        assert re.search(r"its heartbeats stopped for 3\.0 s \(stopped, or out of memory\?\)", errors[rank])
    if stopped > 0:
        assert "rank 0 has given it up" in errors[stopped]
    else:
        assert errors[stopped].startswith("PeerLost: rank ")


@pytest.mark.alone
def test_busy_processors_evict_nobody() -> None:
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        with ProcessRanks(2, _reduce_until_told, environ_by_rank=HOSTS) as ranks:
            ranks.wait_for("running")
            threading.Event().wait(6.0)
            counts = _count_of(ranks)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    assert counts[0] == counts[1] > 1
