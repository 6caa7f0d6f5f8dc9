"""CPU torch tensors as buffers, and the collectives over them.

Collectives work on memory, outside autograd: a result is a new tensor without history, and one in place keeps the
history its tensor had. Only the blocking forms that make a new tensor have gradients, see `autograd`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvdlite.core.buffer import Buffer
from hvdlite.core.dtypes import DType
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.ops import Collectives
from hvdlite.torch import derivatives
from hvdlite.torch.autograd import differentiable

_DTYPES = {getattr(torch, str(dtype)): dtype for dtype in DType}


def dtype_of(dtype: torch.dtype) -> DType:
    """Raises ValueError for a dtype that collectives do not take."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype} is not supported; hvdlite takes {', '.join(map(str, _DTYPES))}")
    return _DTYPES[dtype]


class TensorAdapter:
    """Contiguous strided tensors in CPU memory, whether or not they require a gradient."""

    def buffer(self, tensor: torch.Tensor, is_written: bool = False) -> Buffer:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"expected a torch tensor, got {type(tensor).__name__}")
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None or tensor.layout is not torch.strided or not tensor.is_cpu or not tensor.is_contiguous():
            raise ValueError(_refusal(tensor))
        address = tensor.data_ptr()
        if address & 7 and address % dtype.itemsize:  # no element is longer than 8 bytes
            raise ValueError(f"the memory of the tensor is not aligned to its {dtype} elements; pass tensor.clone()")
        return address, tensor.nbytes, dtype, tensor.shape

    def address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr()

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        # the device is named because torch.set_default_device counts for one thread only
        return torch.empty(tuple(shape), dtype=like.dtype, device="cpu")

    def counts(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cpu")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is contiguous, or else a contiguous copy. What is not strided is left to be refused."""
    return tensor.contiguous() if tensor.layout is torch.strided else tensor


def _refusal(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"tensor of layout {tensor.layout} is not supported; pass tensor.to_dense()"
    if not tensor.is_cpu:
        return f"tensor on device {tensor.device} is not supported; hvdlite takes CPU tensors, pass tensor.cpu()"
    if tensor.dtype not in _DTYPES:
        return f"dtype {tensor.dtype} is not supported; hvdlite takes {', '.join(map(str, _DTYPES))}"
    return f"tensor of shape {tuple(tensor.shape)} is not contiguous; pass tensor.contiguous() instead"


class TensorCollectives(Collectives[torch.Tensor]):
    """The collectives of `hvdlite.ops`, with gradients through them."""

    allreduce = differentiable(Collectives.allreduce, Collectives.allreduce_async, derivatives.of_allreduce)
    grouped_allreduce = differentiable(
        Collectives.grouped_allreduce, Collectives.grouped_allreduce_async, derivatives.of_allreduce
    )
    allgather = differentiable(Collectives.allgather, Collectives.allgather_async, derivatives.of_allgather)
    grouped_allgather = differentiable(
        Collectives.grouped_allgather, Collectives.grouped_allgather_async, derivatives.of_allgather
    )
    broadcast = differentiable(Collectives.broadcast, Collectives.broadcast_async, derivatives.of_broadcast)
    alltoall = differentiable(Collectives.alltoall, Collectives.alltoall_async, derivatives.of_alltoall)
    reducescatter = differentiable(
        Collectives.reducescatter, Collectives.reducescatter_async, derivatives.of_reducescatter
    )
    grouped_reducescatter = differentiable(
        Collectives.grouped_reducescatter, Collectives.grouped_reducescatter_async, derivatives.of_reducescatter
    )
    reduce = differentiable(Collectives.reduce, Collectives.reduce_async, derivatives.of_reduce)
    gather = differentiable(Collectives.gather, Collectives.gather_async, derivatives.of_gather)
    scatter = differentiable(Collectives.scatter, Collectives.scatter_async, derivatives.of_scatter)
    recv = differentiable(Collectives.recv, Collectives.recv_async, derivatives.of_recv)
    _send = differentiable(Collectives.send, Collectives.send_async, derivatives.of_send)

    def send(  # type: ignore[override]
        self,
        tensor: torch.Tensor,
        rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """Sends ``tensor`` to ``rank``, which calls `recv`; returns a zero when it has been received.

        Only these two ranks call anything. Without a name, the first send to a rank meets its first receive from here.
        A sender adds the zero to its loss, so that its backward comes to wait for the gradient from the receiver.
        """
        zero: torch.Tensor | None = self._send(tensor, rank, name, process_set)
        return torch.zeros((), dtype=tensor.dtype, device="cpu") if zero is None else zero


collectives = TensorCollectives(TensorAdapter())
