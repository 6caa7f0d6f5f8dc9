"""PyTorch's memory and streams on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from hvdlite.ops import Device
from hvdlite.ops.gpus import gpu, new_stream


def memory_on_gpu(tensor: torch.Tensor) -> tuple[GpuMemory, Device]:
    """Returns the owner of the memory of ``tensor``, and the GPU that it is on."""
    device, streams = _gpu(tensor.get_device())
    return GpuMemory(tensor.untyped_storage(), streams), device


class GpuMemory:
    """A `Storage` on a GPU, used in ``streams``."""

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

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Allocates in a stream without work, so that no stream still uses the memory.

        PyTorch gives freed memory out again in the stream in which it was allocated, and relies on the stream's order.
        The stream is not one of PyTorch's 32, which programs get in turns. The device is set first: the end of a
        stream's context restores the device before, and CUDA would make a context on a GPU that this rank may not use.
        """
        if self._without_work is None:
            handle = new_stream(self._index)  # never closed, because the allocator keeps memory for it
            self._without_work = torch.cuda.ExternalStream(handle, self._index)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._index), torch.cuda.stream(self._without_work):
            yield

    def use(self, result: Any) -> None:
        stream = torch.cuda.current_stream(self._index)
        for tensor in result if isinstance(result, tuple) else (result,):  # a tuple has the rows from each rank too
            if tensor.is_cuda:
                tensor.record_stream(stream)


@cache
def _gpu(index: int) -> tuple[Device, GpuStreams]:
    return gpu(index), GpuStreams(index)
