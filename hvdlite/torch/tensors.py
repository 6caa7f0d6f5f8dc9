"""CPU torch tensors as buffers, and the collectives over them.

Collectives work on memory, outside autograd: a result is a new tensor without history, and one in place keeps the
history its tensor had. No gradient flows from rank to rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvdlite.core.buffer import Buffer
from hvdlite.core.dtypes import DType
from hvdlite.ops import Collectives

_DTYPES = {getattr(torch, str(dtype)): dtype for dtype in DType}


class TensorAdapter:
    """Contiguous strided tensors in CPU memory, whether or not they require a gradient."""

    def buffer(self, tensor: torch.Tensor, is_written: bool = False) -> Buffer:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"expected a torch tensor, got {type(tensor).__name__}")
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None or tensor.layout is not torch.strided or not tensor.is_cpu or not tensor.is_contiguous():
            raise ValueError(_refusal(tensor))
        address = tensor.data_ptr()
        if address % dtype.itemsize:
            raise ValueError(f"the memory of the tensor is not aligned to its {dtype} elements; pass tensor.clone()")
        return Buffer(address, tensor.nbytes, dtype, tuple(tensor.shape), tensor)

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        # the device is named because torch.set_default_device counts for one thread only
        return torch.empty(tuple(shape), dtype=like.dtype, device="cpu")


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


collectives = Collectives[torch.Tensor](TensorAdapter())
