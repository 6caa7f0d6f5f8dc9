"""Memory of GPUs and their streams, as PyTorch has them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from hvdlite.cuda.presence import KIND
from hvdlite.tensors.device import Device


def memory_on_gpu(tensor: torch.Tensor) -> tuple[GpuMemory, Device]:
    """Returns the owner of the memory of ``tensor``, and the GPU that it is on."""
    device, streams = _gpu(tensor.get_device())
    return GpuMemory(tensor.untyped_storage(), streams), device


class GpuMemory:
    """A `Storage` on a GPU, whose work is in ``streams``."""

    __slots__ = ("data_ptr", "storage", "streams")

    def __init__(self, storage: torch.UntypedStorage, streams: GpuStreams) -> None:
        self.storage = storage
        self.data_ptr = storage.data_ptr
        self.streams = streams

    def __len__(self) -> int:
        return len(self.storage)


class GpuStreams:
    """PyTorch's streams on GPU ``index``; see `hvdlite.tensors.streams.Streams`."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._without_work: torch.cuda.Stream | None = None

    def current(self) -> int:
        stream: int = torch.cuda.current_stream(self._index).cuda_stream
        return stream

    def allocating(self) -> AbstractContextManager[Any]:
        """PyTorch gives freed memory out again in the stream in which it was allocated, whose order protects it.

        In a stream that never gets work, only what no stream uses any more is given out.
        """
        if self._without_work is None:
            self._without_work = torch.cuda.Stream(self._index)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._without_work)

    def use(self, result: Any) -> None:
        stream = torch.cuda.current_stream(self._index)
        for tensor in result if isinstance(result, tuple) else (result,):  # with the rows that came from each rank
            if tensor.is_cuda:
                tensor.record_stream(stream)


@cache
def _gpu(index: int) -> tuple[Device, GpuStreams]:
    return Device(KIND, index), GpuStreams(index)
