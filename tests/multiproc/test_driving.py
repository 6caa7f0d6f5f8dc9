"""A thread that waits for a result does all the work on its way, and never waits for a timer to go on."""

from __future__ import annotations

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite import session
from hvdlite.spin import usable_cores
from tests.harness import process_ranks
from tests.harness.patience import NO_TIMER


def _steps_in_pieces(rounds: int) -> int:
    """Tensors become ready one by one beside a computation, as gradients do, and the last is waited for first."""
    hvd.init()
    tensors = [np.ones(1 << 18, np.float32) for _ in range(6)]
    factor = np.ones((150, 150))
    for _ in range(rounds):
        handles = []
        for index, tensor in enumerate(tensors):
            handles.append(hvd.allreduce_async_(tensor, name=f"t{index}"))
            factor = factor @ factor / 150  # lets the other threads run
        for handle in reversed(handles):
            hvd.synchronize(handle)
    hvd.shutdown()
    return rounds


@pytest.mark.parametrize(("size", "hosts"), [(2, 1), (3, 1), (2, 2), (3, 2)])
def test_a_step_needs_no_timer(size: int, hosts: int) -> None:
    host_of = {rank: {"HVDLITE_HOSTID": f"host {rank % hosts}"} for rank in range(size)}
    outcomes = process_ranks(size, _steps_in_pieces, 150, environ=NO_TIMER, environ_by_rank=host_of)
    assert [outcome.result() for outcome in outcomes] == [150] * size


def _spins_for() -> float:
    hvd.init()
    spin_us = session.current().spin_us
    hvd.shutdown()
    return spin_us


@pytest.mark.parametrize("size", [2, 5])
def test_all_ranks_of_a_host_spin_as_long_as_its_first_one_measured(size: int) -> None:
    outcomes = process_ranks(size, _spins_for)
    (spin_us,) = {outcome.result() for outcome in outcomes}
    assert 50 <= spin_us <= 2000 if size <= usable_cores() else spin_us == 0


def test_a_rank_may_be_told_for_how_long_to_spin() -> None:
    outcomes = process_ranks(2, _spins_for, environ_by_rank={1: {"HVDLITE_SPIN": "7"}})
    assert 0 <= outcomes[0].result() != 7
    assert outcomes[1].result() == 7
