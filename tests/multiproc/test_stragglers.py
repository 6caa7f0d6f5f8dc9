"""Rank 0 names the rank for which all others wait, and nobody in a job whose ranks are equal."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks

HOSTS = {
    "one host": {},
    "two hosts": {rank: {"HVDLITE_HOSTID": f"host {rank // 2}"} for rank in range(3)},
}
_SAID = "all others wait for "


def _train(slow: int, steps: int) -> None:
    """Steps of eight gradients and a barrier, before which one rank computes for longer than the others."""
    hvd.init()
    gradients = [np.ones(1000, np.float32) for _ in range(8)]
    for _ in range(steps):
        threading.Event().wait(0.12 if hvd.rank() == slow else 0.02)  # what computing takes
        handles = [hvd.allreduce_async(tensor, name=f"gradient {i}") for i, tensor in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.barrier()
    hvd.shutdown()


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_slow_rank_is_named_by_rank_0(slow: int, hosts: str) -> None:
    outcomes = process_ranks(3, _train, slow, 30, environ_by_rank=HOSTS[hosts])
    for outcome in outcomes:
        outcome.result()
    assert outcomes[0].output.count(_SAID) == 1
    assert f"{_SAID}rank {slow} on " in outcomes[0].output
    assert not any(_SAID in outcome.output for outcome in outcomes[1:])


@pytest.mark.parametrize("hosts", HOSTS)
def test_in_a_job_of_equal_ranks_nobody_is_named(hosts: str) -> None:
    outcomes = process_ranks(3, _train, -1, 400, environ_by_rank=HOSTS[hosts])
    for outcome in outcomes:
        outcome.result()
        assert _SAID not in outcome.output
