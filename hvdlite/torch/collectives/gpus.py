"""Memory of GPUs and their streams, as PyTorch has them."""

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

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """PyTorch gives freed memory out again in the stream in which it was allocated, whose order protects it.

        In a stream that never gets work, only what no stream uses any more is given out. It is none of PyTorch's,
        which has 32 and gives them to programs in turns. The device is set first, because the end of a stream's context
        sets the one that was current before, for which CUDA makes a context on a GPU that this rank may not use.
        """
        if self._without_work is None:
            handle = new_stream(self._index)  # never closed, because the allocator keeps memory by it
            self._without_work = torch.cuda.ExternalStream(handle, self._index)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._index), torch.cuda.stream(self._without_work):
            yield

    def use(self, result: Any) -> None:
        stream = torch.cuda.current_stream(self._index)
        for tensor in result if isinstance(result, tuple) else (result,):  # with the rows that came from each rank
            if tensor.is_cuda:
                tensor.record_stream(stream)


@cache
def _gpu(index: int) -> tuple[Device, GpuStreams]:
    return gpu(index), GpuStreams(index)
