"""Ranks that cannot load the native library take part like any other, over ZeroMQ."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.members.ranges import shortened
from hvdlite.session import current, shared_arena
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.patience import STALLED
from tests.harness.without_native import hide_native

# Which ranks lack the library, of how many, and the host of each.
TABLE = [
    (1, (0,), "a"),
    (2, (), "aa"),
    (2, (0,), "aa"),
    (2, (1,), "aa"),
    (2, (0, 1), "aa"),
    (2, (1,), "ab"),
    (3, (0,), "aaa"),
    (3, (2,), "aaa"),
    (3, (2,), "aab"),
    (3, (1,), "abc"),
    (3, (0, 1, 2), "aab"),
]


def _start() -> None:
    if hidden := os.environ.get("TEST_WITHOUT_NATIVE"):
        hide_native(abi=None if hidden == "missing" else 1)


def run(
    size: int, lacking: tuple[int, ...], hosts: str, work: Any, *arguments: Any, how: str = "missing", **options: Any
) -> Any:
    """The outcomes of ``work`` on ranks of which those that are ``lacking`` have no library."""
    by_rank = {
        rank: {"HVDLITE_HOSTID": hosts[rank]} | ({"TEST_WITHOUT_NATIVE": how} if rank in lacking else {})
        for rank in range(size)
    }
    environ = {**STALLED, **options.pop("environ", {})}
    return process_ranks(size, work, *arguments, environ=environ, environ_by_rank=by_rank, **options)


def _collectives(lacking: tuple[int, ...], hosts: str) -> dict[str, str]:
    _start()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in ("uint8", "int32", "int64", "float16", "float32", "float64"):
        given = (np.arange(1003) % 5 + rank).astype(dtype)
        total = hvd.allreduce(given, op=hvd.Sum, name=f"sum of {dtype}")
        np.testing.assert_array_equal(total, size * (np.arange(1003) % 5) + size * (size - 1) // 2)
        assert total.dtype == dtype
    half = hvd.allreduce(np.full(3, 4.0), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    np.testing.assert_array_equal(half, 6.0 * size)
    np.testing.assert_array_equal(hvd.allreduce(np.full(5, rank % 2 == 0), op=hvd.Min), size == 1)
    np.testing.assert_allclose(hvd.allreduce(np.full(7, 2.0), op=hvd.Adasum), 2.0)
    gathered = hvd.allgather(np.full((rank + 1, 2), rank))
    np.testing.assert_array_equal(gathered[:, 0], np.repeat(np.arange(size), np.arange(1, size + 1)))
    np.testing.assert_array_equal(hvd.broadcast(np.full(4, rank), root_rank=size - 1), size - 1)
    received, splits = hvd.alltoall(np.repeat(np.arange(size), 2), splits=[2] * size)
    np.testing.assert_array_equal(received, rank)
    np.testing.assert_array_equal(splits, 2)
    part = hvd.reducescatter(np.arange(2.0 * size), op=hvd.Sum)
    np.testing.assert_array_equal(part, size * (np.arange(2) + 2 * rank))
    assert hvd.broadcast_object({"from": rank}, root_rank=0) == {"from": 0}
    long = hvd.allreduce(np.full(1_000_003, rank + 1, np.float32), op=hvd.Sum)  # many pieces
    np.testing.assert_array_equal(long, size * (size + 1) / 2)

    mine = hvd.shared_empty(1000)
    mine[:] = rank
    assert (shared_arena() is not None) is (not lacking and size > 1 and len(set(hosts)) < size)
    hvd.allreduce_(mine, op=hvd.Sum, name="shared")
    np.testing.assert_array_equal(mine, size * (size - 1) / 2)

    planes = {"all": current().plane_name}
    for ranks in ((0, 1), (1, 2), (0, 2), (size - 1,)):
        if ranks[-1] < size and len(ranks) < size and (size > 1):
            members = hvd.add_process_set(ranks)
            if members.included():
                np.testing.assert_array_equal(
                    hvd.allreduce(np.full(9, rank), op=hvd.Sum, process_set=members), sum(ranks)
                )
                planes[" ".join(map(str, ranks))] = current().group_of(members).statistics().planes["cpu"]
    for _ in range(rank + 1):
        hvd.allreduce(np.ones(3), op=hvd.Sum, name="until joined")
    assert hvd.join() == size - 1
    hvd.shutdown()
    hvd.init()  # ranks meet again, and nothing is warned of twice
    hvd.barrier()
    hvd.shutdown()
    return planes


def _plane_of(members: tuple[int, ...], lacking: tuple[int, ...], hosts: str) -> str:
    if len(members) == 1:
        return "local"
    if set(members) & set(lacking):
        return "zmq"
    count = len({hosts[rank] for rank in members})
    return "shm" if count == 1 else "ring" if count == len(members) else "hierarchical"


@pytest.mark.parametrize(("size", "lacking", "hosts"), TABLE)
def test_collectives(size: int, lacking: tuple[int, ...], hosts: str) -> None:
    outcomes = run(size, lacking, hosts, _collectives, lacking, hosts)
    for outcome in outcomes:
        for name, plane in outcome.result().items():
            members = tuple(range(size)) if name == "all" else tuple(map(int, name.split()))
            assert plane == _plane_of(members, lacking, hosts), (outcome.rank, name)
        told = outcome.output.count("cannot load hvdlite's native library")
        assert told == (1 if lacking and outcome.rank == 0 else 0), outcome.output
    if lacking:
        assert f"rank(s) {shortened(lacking)} cannot load" in outcomes[0].output
        assert f"Rank {lacking[0]} reports: " in outcomes[0].output


def _refused() -> str:
    _start()
    with pytest.raises(ValueError, match="HVDLITE_PLANE") as caught:
        hvd.init()
    return str(caught.value)


@pytest.mark.parametrize(
    ("plane", "hosts", "how"), [("shm", "aaa", "missing"), ("ring", "aaa", "missing"), ("hierarchical", "aab", "old")]
)
def test_a_plane_that_needs_the_library_is_refused_alike(plane: str, hosts: str, how: str) -> None:
    outcomes = run(3, (1,), hosts, _refused, how=how, environ={"HVDLITE_PLANE": plane})
    (text,) = {outcome.result() for outcome in outcomes}
    assert text.startswith(f"HVDLITE_PLANE={plane} needs hvdlite's native library, which rank(s) 1 cannot load")
    assert "use auto or zmq" in text


def _sum() -> float:
    _start()
    hvd.init()
    assert current().plane_name == "zmq"
    assert shared_arena() is None
    total = hvd.shared_empty(3)
    total.fill(1)
    hvd.allreduce_(total, op=hvd.Sum)
    return float(total[0])


@pytest.mark.parametrize(("how", "plane"), [("old", "auto"), ("missing", "zmq")])
def test_a_library_of_another_version_counts_as_none_and_who_chose_zmq_is_not_warned(how: str, plane: str) -> None:
    outcomes = run(2, (1,), "aa", _sum, how=how, environ={"HVDLITE_PLANE": plane})
    assert [outcome.result() for outcome in outcomes] == [2.0, 2.0]
    assert ("needs 1" in outcomes[0].output) is (plane == "auto")
    assert ("cannot load" in outcomes[0].output) is (plane == "auto")


def _train(differ: bool) -> list[float]:
    import torch

    import hvdlite.torch as hvd_torch

    _start()
    hvd_torch.init()
    rank, size = hvd_torch.rank(), hvd_torch.size()
    torch.manual_seed(rank if differ else 0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd_torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8 * size, 6, generator=generator)[rank::size]
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
    for dtype in (torch.bfloat16, torch.float16):
        total = hvd_torch.allreduce(torch.full((1001,), rank + 1.0, dtype=dtype), op=hvd_torch.Sum)
        assert total.dtype is dtype
        assert (total == size * (size + 1) / 2).all()
    assert (hvd_torch.shared_empty(5, dtype=torch.bfloat16).fill_(1) == 1).all()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    hvd_torch.shutdown()
    return [float(weights.sum()), float(weights.abs().max())]


@pytest.mark.parametrize(
    ("size", "lacking", "differ"),
    [(1, (0,), False), (2, (), False), (2, (1,), False), (2, (0, 1), True), (2, (1,), True)],
)
@pytest.mark.usefixtures("torch_fork_server")
def test_training_in_torch(size: int, lacking: tuple[int, ...], differ: bool) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    outcomes = run(size, lacking, "a" * size, _train, differ, server=TORCH)
    results = [outcome.result() for outcome in outcomes]
    if not differ:
        assert results == [results[0]] * size
    told = "".join(outcome.output for outcome in outcomes).count("begin to train with different parameters")
    assert told == differ
