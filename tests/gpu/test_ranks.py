"""Ranks that are processes, with tensors on GPUs: the whole of hvdlite over the fakes of CUDA and NCCL."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.cuda.presence import KIND
from hvdlite.planes.nccl import packing
from hvdlite.session import current
from tests.gpu.fake import Fakes
from tests.gpu.program import Gpu
from tests.harness import ProcessRanks, process_ranks, reached
from tests.harness.patience import NEVER_SILENT, STALLED
from tests.multiproc.calls import REDUCTIONS, Call
from tests.multiproc.on_device import every_collective

SETTING = "HVDLITE_GPU_PLANE"
PLANES = ("nccl", "staged")


def _is_taken(call: Call) -> bool:
    """False for what NCCL cannot compute."""
    lacking = ("int", "uint") if call.op == hvd.Average and hvd.size() > 1 else ("int16",)
    return call.kind not in REDUCTIONS or not any(dtype.startswith(lacking) for dtype, _ in call.parts)


def _every_collective(folder: str, plane: str) -> list[str]:
    gpu = Gpu(folder)
    failures = every_collective(gpu.collectives, gpu.array, _is_taken if plane == "nccl" else lambda call: True)
    assert current().everyone.statistics().planes[KIND] == plane
    hvd.barrier()
    gpu.leave()
    return failures


@pytest.mark.parametrize(
    ("plane", "hosts"),
    [
        ("nccl", "a"),
        ("nccl", "aa"),
        ("nccl", "aaa"),
        ("staged", "a"),
        ("staged", "ab"),
        ("staged", "aaa"),
        ("staged", "aab"),
    ],
)
def test_every_collective(loaded_fakes: Fakes, plane: str, hosts: str) -> None:
    of_rank = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)}
    arguments = str(loaded_fakes.folder), plane
    outcomes = process_ranks(
        len(hosts), _every_collective, *arguments, environ={**STALLED, SETTING: plane}, environ_by_rank=of_rank
    )
    for outcome in outcomes:
        assert outcome.result() == []


def _packed_and_not(folder: str) -> None:
    """Batches of many tensors, by the choice of the plane and then by a call for each: the same bits."""
    gpu = Gpu(folder)
    rng = np.random.default_rng(hvd.rank())
    for dtype, op in ((np.float16, hvd.Average), (np.float32, hvd.Sum), (np.int64, hvd.Sum), (np.uint8, hvd.Max)):
        values = [rng.integers(0, 100, length).astype(dtype) for length in np.arange(170) % 100]
        found = []
        for cost in (packing.TENSOR_US, 0.0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(packing, "TENSOR_US", cost)
                arrays = [gpu.array(each) for each in values]
                results = gpu.collectives.grouped_allreduce(arrays, name=f"{dtype} {cost}", op=op)
                found.append([each.on_device().tobytes() for each in results])
        assert found[0] == found[1], dtype
    gpu.leave()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_get_the_same_bits_packed_and_not(loaded_fakes: Fakes, size: int) -> None:
    for outcome in process_ranks(size, _packed_and_not, str(loaded_fakes.folder), environ=STALLED):
        outcome.result()


def _in_another_order_on_each_rank(folder: str) -> None:
    gpu = Gpu(folder)
    order = np.random.default_rng(hvd.rank()).permutation(40)
    for _ in range(3):  # new, and known
        started, of_the_host = {}, []
        for number in order.tolist():
            name, array = f"tensor {number}", gpu.array(np.full(100 + number, number, np.float32))
            started[number] = gpu.collectives.allreduce_async(array, name=name, op=hvd.Sum)
            if number % 7 == 0:
                of_the_host.append(hvd.allreduce_async(np.ones(3), name=f"of the host {number}"))
        for number, handle in started.items():
            assert (hvd.synchronize(handle).on_device() == number * hvd.size()).all()
        for handle in of_the_host:
            hvd.synchronize(handle)
    gpu.leave()


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("size", [2, 3])
def test_collectives_are_launched_in_one_order(loaded_fakes: Fakes, size: int, plane: str) -> None:
    """NCCL's fake notices any other order, since lengths differ."""
    folder = str(loaded_fakes.folder)
    for outcome in process_ranks(size, _in_another_order_on_each_rank, folder, environ={**STALLED, SETTING: plane}):
        outcome.result()


def _joined(folder: str) -> list[list[float]]:
    gpu = Gpu(folder)
    totals = []
    for _ in range(1 + hvd.rank()):
        totals.append(gpu.collectives.allreduce(gpu.array(np.ones(2)), name="x", op=hvd.Sum).on_device().tolist())
    assert hvd.join() == hvd.size() - 1
    gpu.leave()
    return totals


@pytest.mark.parametrize("plane", PLANES)
def test_ranks_that_have_joined_give_zeros(loaded_fakes: Fakes, plane: str) -> None:
    outcomes = process_ranks(3, _joined, str(loaded_fakes.folder), environ={**STALLED, SETTING: plane})
    assert [outcome.result() for outcome in outcomes] == [
        [[3.0] * 2],
        [[3.0] * 2, [2.0] * 2],
        [[3.0] * 2, [2.0] * 2, [1.0] * 2],
    ]


def _joined_without_a_tensor(folder: str) -> int:
    gpu = Gpu(folder)
    other = 1 - gpu.ordinal
    if hvd.rank() == 0:
        hvd.join(other)
    else:
        assert gpu.collectives.allreduce(gpu.array(np.ones(2)), op=hvd.Sum).on_device().tolist() == [1, 1]
        hvd.join(other)  # too late: it has used one
    used = gpu.fakes.cuda.fake_contexts_on(other)
    gpu.leave()
    return int(used)


@pytest.mark.parametrize("plane", PLANES)
def test_a_rank_that_joins_without_a_tensor_uses_the_gpu_that_it_names(loaded_fakes: Fakes, plane: str) -> None:
    outcomes = process_ranks(2, _joined_without_a_tensor, str(loaded_fakes.folder), environ={**STALLED, SETTING: plane})
    assert [outcome.result() for outcome in outcomes] == [1, 0]


def _mixed(folder: str) -> None:
    gpu = Gpu(folder)
    front_end: Any
    front_end, array = (gpu.collectives, gpu.array(np.ones(2))) if hvd.rank() else (hvd, np.ones(2))
    with pytest.raises(hvd.Mismatch):
        front_end.allreduce(array, name="x")
    assert gpu.collectives.allreduce(gpu.array(np.ones(2)), name="y").on_device().tolist() == [1, 1]
    gpu.leave()


@pytest.mark.parametrize("plane", PLANES)
def test_a_gpu_here_and_a_cpu_there_disagree(loaded_fakes: Fakes, plane: str) -> None:
    for outcome in process_ranks(2, _mixed, str(loaded_fakes.folder), environ={**STALLED, SETTING: plane}):
        outcome.result()


def _die_within(folder: str, where: str) -> None:
    """Rank 1 stays where it is said, for ever; the others wait for it."""
    gpu = Gpu(folder)
    ones = gpu.array(np.ones(1000, np.float32))
    is_victim = hvd.rank() == 1
    if where != "making":
        gpu.collectives.allreduce(ones, name="first")
    if is_victim and where == "making":
        gpu.nccl._make = lambda events: threading.Event().wait()  # type: ignore[method-assign,assignment]
    if is_victim and where == "kernel":
        stream = gpu.nccl._gpu.stream.handle  # type: ignore[union-attr]
        gpu.fakes.cuda.fake_hold(stream)  # launched, and does not begin
    handles = [gpu.collectives.allreduce_async(ones, name=f"x {number}") for number in range(3)]
    reached("waiting")
    error = None
    try:
        for handle in handles:
            hvd.synchronize(handle)
    except hvd.PeerLost as lost:
        error = lost
    assert error is not None
    gpu.leave()
    raise error


@pytest.mark.parametrize("where", ["making", "kernel"])
def test_a_rank_that_is_killed_is_lost_on_all_others(loaded_fakes: Fakes, where: str) -> None:
    folder = str(loaded_fakes.folder)
    with ProcessRanks(3, _die_within, folder, where, environ=NEVER_SILENT) as ranks:
        ranks.wait_for("waiting")
        ranks.kill(1)
        outcomes = ranks.join()
    for rank in (0, 2):
        assert (outcomes[rank].error, outcomes[rank].details.get("rank")) == ("PeerLost", 1), outcomes[rank].output


def _refused(folder: str) -> list[tuple[str, str]]:
    gpu, wrong = Gpu(folder), []
    front_end: Any = gpu.collectives
    forms = {
        "allreduce": lambda array: [array],
        "allreduce_": lambda array: [array],
        "grouped_allreduce": lambda array: [[array, array]],
        "reducescatter": lambda array: [array],
        "reduce": lambda array: [array, 0],
    }
    for form, arguments in forms.items():
        for dtype, op, told in (
            (np.int16, hvd.Sum, "NCCL does not reduce int16; pass tensor.int(), or tensor.cpu()"),
            (np.uint8, hvd.Average, "NCCL adds uint8 as uint8, so that a sum may wrap around before it is divided; "),
        ):
            with pytest.raises(ValueError, match=r"tensor\.cpu\(\)") as raised:
                getattr(front_end, form)(*arguments(gpu.array(np.ones(6, dtype))), name="x", op=op)
            if not str(raised.value).startswith(told):
                wrong.append((form, str(raised.value)))
            getattr(hvd, form)(*arguments(np.ones(6, dtype)), name="x", op=op)
    array = gpu.array(np.ones(6, np.int16))
    assert (front_end.broadcast(array, 0, name="x").shape, hvd.size()) == ((6,), 2)
    front_end.allreduce(gpu.array(np.ones(6, np.int32)), name="x", op=hvd.Sum)
    gpu.leave()
    return wrong


def test_what_nccl_lacks_is_refused_to_the_caller(loaded_fakes: Fakes) -> None:
    for outcome in process_ranks(2, _refused, str(loaded_fakes.folder), environ=STALLED):
        assert outcome.result() == []
