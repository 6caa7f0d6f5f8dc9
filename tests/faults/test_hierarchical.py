"""Two hosts of two ranks, one of which is killed in each phase of an all-reduce: every other rank hears which one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.planes.shm.plane import ShmPlane
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.patience import NEVER_SILENT

HOSTS = {rank: {"HVDLITE_HOSTID": f"host {rank // 2}"} for rank in range(4)}
PHASES = {
    "within the host": (ShmPlane, "reducescatter"),
    "across hosts": (RingPlane, "allreduce"),
    "handing out": (ShmPlane, "allgather"),
}


def _pausing(begin: Callable[..., None]) -> Callable[..., None]:
    def wrapped(*arguments: Any) -> None:
        pause_at("held")
        begin(*arguments)

    return wrapped


def _reduce(phase: str, victim: int) -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == victim:
        plane, collective = PHASES[phase]
        setattr(plane, collective, _pausing(getattr(plane, collective)))
    reached("running")
    hvd.allreduce(np.ones(1 << 18, np.float32), name="first")
    hvd.allreduce(np.ones(3), name="second")  # the other host needs nobody to hand out the first


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_killed_in_a_phase_is_named_by_all_others(victim: int, phase: str) -> None:
    with ProcessRanks(4, _reduce, phase, victim, environ=NEVER_SILENT, environ_by_rank=HOSTS) as ranks:
        ranks.wait_for("running")
        ranks.wait_for("held", victim)
        ranks.kill(victim)
        outcomes = ranks.join()
    for rank in set(range(4)) - {victim}:
        outcome = outcomes[rank]
        assert (outcome.error, outcome.details.get("rank")) == ("PeerLost", victim), outcome.output
