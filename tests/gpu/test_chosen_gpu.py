"""A rank uses one GPU in a group, that of its first tensor; another one is refused where it is submitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.cuda.presence import KIND
from hvdlite.ops import Collectives
from hvdlite.tensors.device import Device
from tests.gpu.fake import Fakes, GpuArray
from tests.gpu.program import Gpu, Program, StreamedArray
from tests.harness import process_ranks
from tests.harness.device import DeviceAdapter
from tests.harness.patience import STALLED

FORMS: dict[str, Callable[..., Any]] = {
    "allreduce": lambda front_end, array, name: front_end.allreduce(array, name=name),
    "allreduce_async": lambda front_end, array, name: front_end.allreduce_async(array, name=name),
    "allreduce_": lambda front_end, array, name: front_end.allreduce_(array, name=name),
    "grouped": lambda front_end, array, name: front_end.grouped_allreduce([array, array], name=name),
    "allgather": lambda front_end, array, name: front_end.allgather(array, name=name),
    "alltoall": lambda front_end, array, name: front_end.alltoall(array, name=name),
    "broadcast": lambda front_end, array, name: front_end.broadcast(array, 0, name=name),
    "reducescatter": lambda front_end, array, name: front_end.reducescatter(array, name=name),
}


class _Front:
    """A front end whose tensors are on GPU ``ordinal``, which may have no such number, in fact on that of ``gpu``."""

    def __init__(self, gpu: Gpu, ordinal: int) -> None:
        self._gpu, self._ordinal = gpu, ordinal
        device = Device(KIND, ordinal)
        kind = StreamedArray if isinstance(gpu, Program) else GpuArray
        self.collectives: Any = Collectives[Any](DeviceAdapter(kind, self.empty, device))

    def empty(self, shape: Any, dtype: Any) -> GpuArray:
        real = self._ordinal % 2
        if isinstance(self._gpu, Program):
            return StreamedArray(self._gpu.streams, shape, dtype, real)
        return self._gpu.fakes.empty(shape, dtype, real)

    def array(self, dtype: Any = np.float32) -> GpuArray:
        made = self.empty((4,), dtype)
        made.write(np.ones(4, dtype))
        return made


def _refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as raised:
        call()
    return str(raised.value)


def _use(gpu: Gpu, wait: Callable[[], None]) -> list[str]:
    """What is told of tensors on a GPU that is not there, then on the right one, and then on another.

    ``wait`` lets the program's stream get to the end.
    """
    own, other = _Front(gpu, gpu.ordinal), _Front(gpu, 1 - gpu.ordinal)
    missing = _Front(gpu, 7)
    texts = [_refusal(lambda: missing.collectives.allreduce(missing.array(), name="missing"))]
    # Nobody else has submitted it, so nothing is launched when the second tensor comes.
    hvd.barrier()
    if hvd.rank() == 1:
        first = own.collectives.allreduce_async(own.array(), name="first", op=hvd.Sum)
        texts.append(_refusal(lambda: other.collectives.allreduce(other.array(), name="second")))
        hvd.barrier()
    else:
        hvd.barrier()
        first = own.collectives.allreduce_async(own.array(), name="first", op=hvd.Sum)
        texts.append(_refusal(lambda: other.collectives.allreduce(other.array(), name="second")))
    total = hvd.synchronize(first)
    wait()
    assert total.on_device().tolist() == [hvd.size()] * 4
    for form, call in FORMS.items():
        for name in ("first", form):
            texts.append(_refusal(lambda call=call, name=name: call(other.collectives, other.array(), name)))
        result = call(own.collectives, own.array(), form)
        hvd.synchronize(result) if form.endswith("async") else result
        call(hvd, np.ones(4), f"{form} of the host")
    return texts


def _with_streams(folder: str) -> list[str]:
    program = Program(folder)
    with program.streams.opened() as stream:
        texts = _use(program, stream.synchronize)
    program.leave()
    return texts


def _without_streams(folder: str) -> list[str]:
    gpu = Gpu(folder)
    texts = _use(gpu, lambda: None)
    alone = [hvd.add_process_set([rank]) for rank in range(hvd.size())][hvd.rank()]
    other = _Front(gpu, 1 - gpu.ordinal)
    total = other.collectives.allreduce(other.array(), op=hvd.Sum, process_set=alone)  # another group
    assert total.on_device().tolist() == [1] * 4
    hvd.barrier()
    gpu.leave()
    return texts


@pytest.mark.parametrize("work", [_without_streams, _with_streams])
def test_another_gpu_is_refused_where_it_is_submitted(loaded_fakes: Fakes, work: Callable[[str], list[str]]) -> None:
    """The first submit decides, not the first launch. And the session lives on."""
    for rank, outcome in enumerate(process_ranks(2, work, str(loaded_fakes.folder), environ=STALLED)):
        missing, *texts = outcome.result()
        told = (
            f"a tensor is on GPU 7, which rank {rank} cannot use: cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE (101)"
        )
        assert missing.startswith(told)
        assert len(texts) == 1 + 2 * len(FORMS)
        assert set(texts) == {
            f"a tensor is on GPU {1 - rank}, but rank {rank} uses GPU {rank} in this group; call "
            "torch.cuda.set_device(hvd.local_rank()) before anything is on a GPU, and use that GPU only"
        }


def _refused_for_another_reason(folder: str) -> None:
    gpu = Gpu(folder)
    own, other = _Front(gpu, gpu.ordinal), _Front(gpu, 1 - gpu.ordinal)
    _refusal(lambda: other.collectives.allreduce(other.array(), op=hvd.Adasum))
    _refusal(lambda: other.collectives.allreduce(other.array(), name=7))
    _refusal(lambda: other.collectives.allreduce(other.array(np.int16), op=hvd.Sum))  # which NCCL lacks
    own.collectives.allreduce(own.array())
    gpu.leave()


def test_a_tensor_that_was_refused_chooses_no_gpu(loaded_fakes: Fakes) -> None:
    for outcome in process_ranks(2, _refused_for_another_reason, str(loaded_fakes.folder), environ=STALLED):
        outcome.result()


def _joined(folder: str) -> list[float]:
    """Rank 1 has no tensor at all."""
    gpu = Gpu(folder)
    total: list[float] = []
    if hvd.rank() == 0:
        own = _Front(gpu, 0)
        total = own.collectives.allreduce(own.array(), name="x", op=hvd.Sum).on_device().tolist()
    hvd.join()
    assert gpu.nccl._gpu is not None
    assert gpu.nccl._gpu.context.ordinal == hvd.local_rank()
    if hvd.rank() == 1:
        other = _Front(gpu, 0)
        assert "rank 1 uses GPU 1 in this group" in _refusal(lambda: other.collectives.allreduce(other.array()))
    gpu.leave()
    return total


def test_a_rank_that_has_joined_uses_the_gpu_of_its_number_on_the_host(loaded_fakes: Fakes) -> None:
    outcomes = process_ranks(2, _joined, str(loaded_fakes.folder), environ=STALLED)
    assert [outcome.result() for outcome in outcomes] == [[1] * 4, []]
