"""The functions and collectives of Horovod, one behaviour each, where hvdlite stands for it.

The names of the scenarios are the table of the behaviour that scripts, test suites and recipes rely on, and every row
is right here. What differs on purpose has its line in docs/horovod.md.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.compat import FOLDER, install_as_horovod
from tests.frontends.scenarios import AsHorovod, Report
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.patience import PATIENCE_S

scenario = AsHorovod(ranks=[2, 3])


# ---- the functions of a rank


@scenario
def init_again_changes_nothing() -> None:
    before = hvd.rank(), hvd.size(), hvd.global_process_set.ranks
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.global_process_set.ranks) == before


@scenario
def process_sets_have_numbers_that_test_suites_ask_for() -> None:
    everyone = list(range(hvd.size()))
    from horovod.torch import mpi_ops

    ids_and_ranks = mpi_ops._basics._get_process_set_ids_and_ranks
    assert ids_and_ranks() == {0: everyone}
    first, rest = hvd.add_process_set([0]), hvd.add_process_set(range(1, hvd.size()))
    assert ids_and_ranks() == {0: everyone, first.process_set_id: [0], rest.process_set_id: everyone[1:]}
    with pytest.raises(ValueError, match="already"):
        hvd.add_process_set([0])
    assert hvd.remove_process_set(first)
    assert hvd.remove_process_set(rest)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert first.process_set_id is first.included() is first.rank() is first.size() is None
    assert ids_and_ranks() == {0: everyone}


@scenario
def operations_are_numbers() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))


@scenario
def modules_of_horovod_are_attributes() -> None:
    from horovod.common.util import _cache
    from horovod.torch import mpi_ops
    from horovod.torch.mpi_ops import allreduce_async, synchronize

    assert synchronize(allreduce_async(torch.ones(2), name="by module")).tolist() == [1, 1]
    assert mpi_ops.allreduce is hvd.allreduce
    assert mpi_ops is hvd.mpi_ops  # type: ignore[attr-defined]
    calls: list[int] = []
    remembered = _cache(lambda number, verbose=False: calls.append(number))
    assert [remembered(1), remembered(1, verbose=True), remembered(1)] == [None] * 3
    assert calls == [1, 1]


# ---- collectives


@scenario
def in_place_gives_the_same_object_and_both_forms_average() -> None:
    tensor = torch.full((3,), float(hvd.rank()))
    mean = sum(range(hvd.size())) / hvd.size()
    assert hvd.allreduce(tensor).tolist() == [mean] * 3
    assert hvd.allreduce_(tensor) is tensor
    assert tensor.tolist() == [mean] * 3


@scenario
def a_mismatch_is_a_runtime_error_on_every_rank_and_the_job_goes_on() -> None:
    from horovod.common.exceptions import HorovodInternalError

    for differing in (torch.ones(3 + hvd.rank()), torch.ones(3).to([torch.int32, torch.float32][hvd.rank() % 2])):
        with pytest.raises(RuntimeError) as caught:
            hvd.allreduce(differing, name="differing")
        assert isinstance(caught.value, HorovodInternalError)
    with pytest.raises(HorovodInternalError):
        hvd.broadcast(torch.ones(1), root_rank=hvd.rank(), name="roots")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="differing").item() == hvd.size()


@scenario
def wrong_arguments_are_value_errors() -> None:
    for call in (
        lambda: hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum),
        lambda: hvd.broadcast(torch.ones(2), root_rank=hvd.size()),
        lambda: hvd.alltoall(torch.ones(hvd.size() + 1)),
        lambda: hvd.alltoall(torch.ones(2), splits=[3] * hvd.size()),
        lambda: hvd.alltoall(torch.ones(hvd.size()), splits=torch.ones(hvd.size())),
        lambda: hvd.reducescatter(torch.tensor(1.0)),
        lambda: hvd.allreduce(torch.eye(2).to_sparse()),
        lambda: hvd.ProcessSet([0, 0]),
    ):
        with pytest.raises(ValueError):
            call()


@scenario
def adasum_in_reducescatter_is_a_runtime_error() -> None:
    for call in (hvd.reducescatter, hvd.reducescatter_async):
        with pytest.raises(RuntimeError, match="op Adasum is not supported in reducescatter"):
            call(torch.ones(4), op=hvd.Adasum)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.grouped_reducescatter([torch.ones(4)], op=hvd.Adasum)
    assert hvd.reducescatter(torch.ones(hvd.size()), op=hvd.Sum).item() == hvd.size()


@scenario
def a_handle_is_synchronized_once() -> None:
    handle = hvd.allreduce_async(torch.ones(2), name="once")
    while not hvd.poll(handle):
        pass
    assert hvd.poll(handle)
    assert hvd.synchronize(handle).tolist() == [1, 1]
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="synchronized once"):
        hvd.poll(handle)


@scenario
def a_barrier_overtakes_what_is_pending() -> None:
    if hvd.rank() > 0:
        hvd.barrier()
    handle = hvd.allreduce_async(torch.ones(2), name="pending")
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="already in flight"):
            hvd.allreduce_async(torch.ones(2), name="pending")
        hvd.barrier()
    assert hvd.synchronize(handle).tolist() == [1, 1]


@scenario
def splits_decide_what_alltoall_returns() -> None:
    tensor = torch.arange(2.0 * hvd.size())
    assert isinstance(hvd.alltoall(tensor), torch.Tensor)
    collected, received = hvd.alltoall(tensor, splits=[1] * hvd.size())
    assert (received.dtype, received.tolist(), len(collected)) == (torch.int32, [1] * hvd.size(), hvd.size())
    assert len(hvd.synchronize(hvd.alltoall_async(tensor))) == 2


@scenario
def whole_numbers_truncate_toward_zero() -> None:
    last = hvd.size() - 1
    assert hvd.allreduce(torch.tensor([-1 if hvd.rank() == last else 0, 2 * hvd.size() - 1])).tolist() == [
        0,
        2 * hvd.size() - 1,
    ]
    assert hvd.allreduce(torch.tensor([-3]), op=hvd.Sum, prescale_factor=0.5).item() == -hvd.size()


@scenario
def objects() -> None:
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1, name="object") == {"rank": 1}
    assert hvd.allgather_object([hvd.rank()], name="objects") == [[rank] for rank in range(hvd.size())]


@scenario
def join_returns_the_last_rank_and_averages_divide_by_all() -> None:
    for _ in range(hvd.rank()):
        hvd.allreduce(torch.ones(1), name="uneven")
    if hvd.rank() == hvd.size() - 1:
        assert hvd.allreduce(torch.ones(1), name="last").item() == pytest.approx(1 / hvd.size())
    assert hvd.join() == hvd.size() - 1


def before_init() -> None:
    """Runs on ranks that have not called init()."""
    install_as_horovod()
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            call()
    with pytest.raises(hvd.HorovodInternalError, match="Horovod has not been initialized"):
        hvd.allreduce(torch.ones(1))


def test_before_init() -> None:
    (outcome,) = process_ranks(1, before_init, server=TORCH)
    outcome.result()


def test_torch_as_horovod(report: Report, name: str) -> None:
    assert report[name] == ""


def test_the_launcher_is_a_module_that_runs() -> None:
    """As in ``python -m horovod.runner.launch -np 2 python train.py``."""
    program = "from horovod.common.basics import HorovodBasics; hvd = HorovodBasics(); hvd.init(); print(hvd.size())"
    command = ["-m", "horovod.runner.launch", "-np", "2", sys.executable, "-c", program]
    ended = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": FOLDER},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:2", "[1]<stdout>:2"]
