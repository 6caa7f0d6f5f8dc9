"""Ranks whose programs hold more than a thousand files: descriptors of hvdlite's are then beyond FD_SETSIZE."""

from __future__ import annotations

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, process_ranks
from tests.harness.crowded import crowded

_HOSTS = ["aaa", "aab"]


def _by_rank(hosts: str) -> dict[int, dict[str, str]]:
    return {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)}


def _session() -> list[float]:
    with crowded():
        hvd.init()
        total = hvd.allreduce(np.full(4, hvd.rank() + 1.0), op=hvd.Sum).tolist()
        pair = hvd.add_process_set([0, 2])
        if pair.included():
            total += hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=pair).tolist()
        hvd.barrier()
        hvd.shutdown()
    return list(total)


@pytest.mark.parametrize("hosts", _HOSTS)
def test_a_session(hosts: str) -> None:
    outcomes = process_ranks(3, _session, environ_by_rank=_by_rank(hosts))
    assert [outcome.result() for outcome in outcomes] == [[6.0] * 4 + [2.0], [6.0] * 4, [6.0] * 4 + [2.0]]


def _loses_a_rank() -> None:
    with crowded():
        hvd.init()
        hvd.allreduce(np.ones(4))
        pause_at("to be killed")
        hvd.allreduce(np.ones(4))


@pytest.mark.parametrize("hosts", _HOSTS)
def test_the_loss_of_a_rank(hosts: str) -> None:
    with ProcessRanks(3, _loses_a_rank, environ_by_rank=_by_rank(hosts)) as ranks:
        ranks.wait_for("to be killed")
        ranks.kill(1)
        ranks.release(0, 2)
        outcomes = ranks.join()
    for rank in (0, 2):
        assert outcomes[rank].error == "PeerLost"
        assert "rank 1" in outcomes[rank].message
