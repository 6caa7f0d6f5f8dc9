"""Ranks that are lost while others use their GPUs: who hears of it, and that the same processes go on."""

from __future__ import annotations

import signal
from unittest import mock

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.planes.nccl import gpu
from tests.gpu.machine.place import IS_MACHINE
from tests.gpu.torch_fake.ranks import choose_gpu, fakes, held
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.forkserver import ForkServer
from tests.harness.patience import NEVER_SILENT

_RANKS, _VICTIM = 3, 2
_LIMIT_S = 5.0  # of the time from the loss to the error, where nothing else uses the machine
_GROWTH = 64 << 20 if IS_MACHINE else 10
"""Bytes that a hundred steps may take of a GPU which all ranks use, or pieces of memory of a fake one.

A leak takes one for each step. PyTorch keeps what was freed, as much as was ever in use at once.
"""
_LASTING = {"HVDLITE_PEER_TIMEOUT": "10"}  # for ranks that share two cores with other tests


def _expect_loss() -> None:
    """Waits for the GPU, and for the error of a collective."""
    with pytest.raises(hvd.PeerLost) as raised:
        hvd.allreduce(torch.ones(1000), name="next")
    assert raised.value.rank == _VICTIM
    torch.cuda.synchronize()
    reached("lost")


def _between_kernels() -> None:
    hvd.allreduce(torch.ones(1000))
    if hvd.rank() == _VICTIM:
        pause_at("ready")
    reached("ready")
    _expect_loss()


def _inside_a_kernel() -> None:
    hvd.allreduce(torch.ones(1000))
    mine = torch.ones(1000)
    if hvd.rank() == _VICTIM:
        with held(torch.cuda.current_stream()):
            hvd.synchronize(hvd.allreduce_async_(mine, name="inside"))
            pause_at("ready")
    hvd.synchronize(hvd.allreduce_async_(mine, name="inside"))  # which the GPU has been given
    reached("ready")
    torch.cuda.synchronize()  # returns only once the kernel has been ended
    _expect_loss()


def _while_communicators_are_made() -> None:
    made = gpu.Communicator

    def pausing(*arguments: object, **options: object) -> object:
        reached("ready")
        if hvd.rank() == _VICTIM:
            pause_at("at its communicator")
        return made(*arguments, **options)

    with mock.patch.object(gpu, "Communicator", pausing):
        _expect_loss()


_WAYS = {work.__name__[1:]: work for work in (_between_kernels, _inside_a_kernel, _while_communicators_are_made)}


def _lose(way: str) -> None:
    choose_gpu()
    hvd.init()
    _WAYS[way]()
    hvd.shutdown()


@pytest.mark.parametrize("way", _WAYS)
def test_a_rank_that_is_killed(way: str, torch_ranks: ForkServer) -> None:
    environ = {} if IS_MACHINE else NEVER_SILENT
    with ProcessRanks(_RANKS, _lose, way, environ=environ, server=torch_ranks) as ranks:
        ranks.wait_for("ready")
        killed = ranks.kill(_VICTIM)
        outcomes = ranks.join()
        for rank in range(_VICTIM):
            outcomes[rank].result()
            if IS_MACHINE:
                assert ranks.time_of("lost", rank) - killed < _LIMIT_S


def _taken() -> int:
    """Bytes, or pieces of memory, that are in use on this rank's GPU."""
    torch.cuda.synchronize()
    hvd.barrier()
    if not IS_MACHINE:
        return fakes().held()["allocations"]
    free, total = torch.cuda.mem_get_info()
    return total - free


def _go_on() -> None:
    """Loses the last rank, which was stopped, and does a hundred steps with it afterwards."""
    choose_gpu()
    hvd.init()
    hvd.allreduce(torch.ones(1000))
    if hvd.rank() == _VICTIM:
        pause_at("ready")
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones(1000), name="next")
    else:
        reached("ready")
        _expect_loss()
    hvd.shutdown()
    hvd.init()
    before = 0
    for step in range(110):
        mine = torch.full((10_000,), float(hvd.rank() + step))
        total = hvd.allreduce(mine, op=hvd.Sum, name=f"step {step % 5}")
        assert (total == hvd.size() * (step + 1.0)).all()  # of ranks 0, 1 and 2
        if step == 9:
            before = _taken()
    growth = _taken() - before
    assert growth <= _GROWTH
    hvd.shutdown()


def test_a_rank_that_is_stopped_is_thrown_out_and_all_go_on_in_the_next_session(torch_ranks: ForkServer) -> None:
    environ = {} if IS_MACHINE else _LASTING
    with ProcessRanks(_RANKS, _go_on, environ=environ, server=torch_ranks) as ranks:
        ranks.wait_for("ready")
        stopped = ranks.send_signal(_VICTIM, signal.SIGSTOP)
        ranks.wait_for("lost", 0, 1)
        ranks.send_signal(_VICTIM, signal.SIGCONT)
        ranks.release(_VICTIM)
        for outcome in ranks.join():
            outcome.result()
        if IS_MACHINE:
            assert all(ranks.time_of("lost", rank) - stopped < _LIMIT_S for rank in range(_VICTIM))
