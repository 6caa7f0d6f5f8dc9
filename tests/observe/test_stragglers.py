"""Rank 0 names the rank for which all others wait, and nobody in a job whose ranks are equal."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import Outcome, process_ranks

HOSTS = {
    "one host": {},
    "two hosts": {rank: {"HVDLITE_HOSTID": f"host {rank // 2}"} for rank in range(3)},
}
_SAID = " makes all others wait, "


def _train(slow: list[int], folder: str, steps: int) -> None:
    """Steps that compute, with eight gradients and a barrier. The ranks in ``slow`` are the last in turn, by 0.1 s."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    submitted = np.memmap(Path(folder, "submitted"), np.int64, "r+", shape=(size,))  # steps, by rank
    gradients = [np.ones(1000, np.float32) for _ in range(8)]
    for step in range(steps):
        threading.Event().wait(0.05)
        if rank == slow[step % len(slow)]:
            while sum(submitted > step) < size - 1:
                threading.Event().wait(0.001)
            threading.Event().wait(0.1)
        handles = [hvd.allreduce_async(tensor, name=f"gradient {i}") for i, tensor in enumerate(gradients)]
        submitted[rank] = step + 1
        for handle in handles:
            hvd.synchronize(handle)
        hvd.barrier()
    hvd.shutdown()


def _trained(slow: list[int], hosts: str, folder: Path) -> list[Outcome]:
    (folder / "submitted").write_bytes(bytes(8 * 3))
    return process_ranks(3, _train, slow, str(folder), 35, environ_by_rank=HOSTS[hosts])


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_slow_rank_is_named_by_rank_0(slow: int, hosts: str, tmp_path: Path) -> None:
    outcomes = _trained([slow], hosts, tmp_path)
    for outcome in outcomes:
        outcome.result()
    assert outcomes[0].output.count(_SAID) == 1
    assert f"rank {slow} on " in outcomes[0].output.partition(_SAID)[0].splitlines()[-1]
    assert "before the first gradient. " in outcomes[0].output
    assert not any(_SAID in outcome.output for outcome in outcomes[1:])


@pytest.mark.parametrize("hosts", HOSTS)
def test_in_a_job_of_equal_ranks_nobody_is_named(hosts: str, tmp_path: Path) -> None:
    for outcome in _trained([0, 1, 2], hosts, tmp_path):
        outcome.result()
        assert _SAID not in outcome.output
