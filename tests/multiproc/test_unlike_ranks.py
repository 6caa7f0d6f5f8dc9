"""Ranks that do not match say so when they meet: all of them, at once and alike."""

from __future__ import annotations

import os

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.rendezvous import world
from tests.harness import process_ranks

_TABLE = [
    (("local", "shm", "shm"), "local on rank(s) 0; shm on rank(s) 1, 2"),
    (("shm", "local", "ring"), "shm on rank(s) 0; local on rank(s) 1; ring on rank(s) 2"),
    (("auto", "auto", "zmq"), "auto on rank(s) 0, 1; zmq on rank(s) 2"),
    (("ring", "auto", "auto"), "ring on rank(s) 0; auto on rank(s) 1, 2"),
    (("hierarchical", "ring", "hierarchical"), "hierarchical on rank(s) 0, 2; ring on rank(s) 1"),
]


def _refusal() -> str:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.init()
    return str(caught.value)


def _all_of_it() -> list[str]:
    rank = int(os.environ["HVDLITE_RANK"])
    told = []
    for planes, _ in _TABLE:
        os.environ["HVDLITE_PLANE"] = planes[rank]
        told.append(_refusal())
    os.environ["HVDLITE_PLANE"] = "auto"
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(world, "__version__", "older")
        told.append(_refusal())
    hvd.init()  # they match now
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 3
    hvd.barrier()
    hvd.shutdown()
    return told


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_all_ranks_say_alike_who_differs(hosts: str) -> None:
    by_rank = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)}
    outcomes = process_ranks(3, _all_of_it, environ_by_rank=by_rank)
    wanted = [f"ranks have different values of HVDLITE_PLANE: {told}. Set it alike on all ranks." for _, told in _TABLE]
    wanted.append(
        f"ranks have different versions of hvdlite: {world.__version__} on rank(s) 0, 2; older on rank(s) 1. "
        "Install the same everywhere."
    )
    assert [outcome.result() for outcome in outcomes] == [wanted] * 3
