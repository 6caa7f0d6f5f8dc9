"""Torch tensors, on the CPU and on GPUs, as buffers.

A tensor's memory is not always what `data_ptr` returns: its values may be the negatives or conjugates of the memory's,
it may wrap other tensors, or have no memory at all. Most tensors are plain, which takes a few checks. All others take
the slow path: forms that only read get copies, and unsupported tensors are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch import pyfunctorch
from torch.utils._python_dispatch import _disable_current_modes

from hvdlite.ops import CPU, Buffer, DType, ElementType, NotAnArray, Opaque, added_as
from hvdlite.ops.numbers import array_of
from hvdlite.torch.collectives.gpus import memory_on_gpu

_DTYPES = {getattr(torch, str(dtype)): dtype for dtype in DType}
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_PLAIN = frozenset({_Tensor, _Parameter})


def dtype_of(dtype: torch.dtype) -> DType:
    """Returns hvdlite's dtype for one of torch. Raises ValueError for an unsupported one."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype} is not supported; hvdlite takes {', '.join(map(str, _DTYPES))}")
    return _DTYPES[dtype]


def supports(dtype: torch.dtype) -> bool:
    """True if hvdlite has this dtype."""
    return dtype in _DTYPES


class TensorAdapter:
    """Tensors in memory of the CPU or a GPU, whether or not they require a gradient."""

    finish = None

    def buffer(self, tensor: torch.Tensor, is_written: bool = False) -> Buffer:
        try:
            kind = type(tensor)
            is_plain = kind is _Tensor or kind is _Parameter
            if is_plain and tensor.is_contiguous() and not tensor.is_neg():
                dtype, address = _DTYPES[tensor.dtype], tensor.data_ptr()
                # Without an address it has no elements, or no memory; no element is longer than 8 bytes.
                if address and not (address & 7 and address % dtype.itemsize):
                    if tensor.is_cpu:
                        return address, dtype, tensor.shape, tensor.untyped_storage(), CPU
                    if tensor.is_cuda:
                        return address, dtype, tensor.shape, *memory_on_gpu(tensor)
        except (KeyError, RuntimeError):
            pass  # so that errors below do not have this one as their context
        return _checked_buffer(tensor, is_written)

    def of_number(self, value: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]] | None:
        array = array_of(value)
        if array is None:
            return None
        is_python = not isinstance(value, array.dtype.type)
        try:
            tensor = torch.from_numpy(array)
        except TypeError:
            raise ValueError(
                f"torch has no dtype {array.dtype}; hvdlite's own collectives, without torch, take it"
            ) from None

        def convert(result: Any) -> Any:
            if not isinstance(result, torch.Tensor) or result.dim():  # converted before, or without rows
                return result
            return result.item() if is_python else result.numpy()[()]

        return tensor, convert

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> tuple[torch.Tensor, int]:
        if shape == like.shape and type(like) in _PLAIN:  # takes half the time
            output = torch.empty_like(like, memory_format=torch.contiguous_format)
        else:  # the device is given because torch.set_default_device is for one thread only
            output = torch.empty(tuple(shape), dtype=like.dtype, device=_place_of(like))
        try:
            if type(output) is torch.Tensor and ((address := output.data_ptr()) or not output.numel()):
                return output, address
        except RuntimeError:
            pass
        with _in_memory():
            output = torch.empty(tuple(shape), dtype=like.dtype, device=_place_of(like))
        return output, output.data_ptr()

    def counts(self, values: Sequence[int]) -> torch.Tensor:
        with _in_memory():
            return torch.tensor(values, dtype=torch.int32, device="cpu")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Returns ``tensor`` itself if its memory holds its values, contiguous and aligned, or else a copy.

    Returns a tensor without memory as it is; it is refused later.
    """
    if torch.nn.parameter.is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    found = tensor.resolve_conj().resolve_neg().contiguous()
    return found if _is_aligned(found) else found.clone()


def expanded(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions along which elements share memory, as after `expand`."""
    return [index for index, stride in enumerate(tensor.stride()) if stride == 0 and tensor.shape[index] > 1]


def refuse_wrapped(parameter: torch.Tensor, name: str) -> None:
    """Raises ValueError for a parameter of a class that wraps tensors, such as a DTensor."""
    if _is_dtensor(parameter):
        raise ValueError(
            f"parameter {name!r} is a DTensor: torch (fully_shard, distribute_tensor) reduces its gradient itself; "
            "use either that or hvd.DistributedOptimizer, not both"
        )
    if _is_wrapper(parameter):
        raise ValueError(f"parameter {name!r} {_advice_on_wrapper(parameter)}")


def _advice(thing: object) -> str:
    is_number = isinstance(thing, (int, float, complex))
    return "torch.tensor([x]) makes one of one row" if is_number else "torch.as_tensor(x) makes one"


def _checked_buffer(tensor: torch.Tensor, is_written: bool) -> Buffer:
    if not isinstance(tensor, torch.Tensor):
        raise NotAnArray(f"expected a torch tensor, got {type(tensor).__name__}; {_advice(tensor)}")
    with torch._C.DisableTorchFunctionSubclass():
        refusal = _refusal(tensor)
        if refusal:
            raise ValueError(refusal)
        return _buffer(tensor, is_written)


def _buffer(tensor: torch.Tensor, is_written: bool) -> Buffer:
    dtype = _element_type(tensor.dtype)
    try:
        found = tensor if is_written else dense(tensor)
    except RuntimeError as error:
        raise ValueError(f"torch cannot make the tensor contiguous: {error}") from None
    if found.is_neg() or found.is_conj():
        raise ValueError(
            "the tensor's values are the negatives or conjugates of its memory, so it cannot be written in place; "
            "use the form without _, or pass tensor.resolve_neg().resolve_conj()"
        )
    if not found.is_contiguous():
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} that is not contiguous cannot be written in place; "
            "use the form without _, or pass tensor.contiguous()"
        )
    if not _is_aligned(found):
        raise ValueError(f"the memory of the tensor is not aligned to its {dtype} elements; pass tensor.clone()")
    address = found.data_ptr()
    if not address and found.numel():
        raise ValueError(
            "the tensor has no memory: its storage was resized to 0, or it was never materialized; "
            "pass a tensor with values, such as torch.zeros_like(tensor)"
        )
    owner, device = memory_on_gpu(found) if found.is_cuda else (found.untyped_storage(), CPU)
    return address, dtype, found.shape, owner, device


def _is_aligned(tensor: torch.Tensor) -> bool:
    """True if planes can add the tensor's elements in place; irrelevant for a tensor without elements."""
    parts = added_as(_element_type(tensor.dtype))
    return parts is None or not _has_memory(tensor) or tensor.data_ptr() % parts.itemsize == 0


def _refusal(tensor: torch.Tensor) -> str:
    """Returns why ``tensor`` has no memory to send; empty if it has."""
    if _is_wrapper(tensor):
        return f"a tensor {_advice_on_wrapper(tensor)}"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside torch.func or torch.vmap a tensor has no memory of its own; call collectives outside of them"
    if torch.nn.parameter.is_lazy(tensor):
        return "a parameter that is not initialized has no memory; run the module once, or give it its sizes"
    if tensor.is_nested:
        return "a nested tensor is not supported; pass tensor.values(), or the tensors of tensor.unbind() as a group"
    if tensor.layout is not torch.strided:
        return f"tensor of layout {tensor.layout} is not supported; pass tensor.to_dense()"
    if tensor.is_quantized:
        return f"dtype {tensor.dtype} is not supported; pass tensor.int_repr(), or tensor.dequantize()"
    if not (tensor.is_cpu or tensor.is_cuda):
        return (
            f"tensor on device {tensor.device} is not supported; hvdlite takes CPU and CUDA tensors, pass tensor.cpu()"
        )
    return ""


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """True for subclasses, the user's or torch's, whose tensors have no memory of their own."""
    dispatch = getattr(type(tensor), "__torch_dispatch__", None)
    if dispatch is None or dispatch is torch.Tensor.__torch_dispatch__:
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return not _has_memory(tensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    if _is_fake(tensor):  # it warns
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        return False


def _advice_on_wrapper(tensor: torch.Tensor) -> str:
    kind = type(tensor)
    if _is_dtensor(tensor):
        return (
            "is a DTensor, which torch spreads over ranks itself (fully_shard, distribute_tensor); "
            "pass tensor.to_local() for the part of this rank, or tensor.full_tensor() for all of it"
        )
    if _is_fake(tensor):
        return "is a FakeTensor, which has no values; call collectives outside of FakeTensorMode"
    return f"is a {kind.__name__}, which has no memory of its own; pass the tensors that it wraps"


def _is_dtensor(tensor: torch.Tensor) -> bool:
    """True for a DTensor. Compares names, because importing the class is slow."""
    return any(each.__name__ == "DTensor" for each in type(tensor).__mro__)


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "FakeTensor"


def _element_type(dtype: torch.dtype) -> ElementType:
    return _DTYPES[dtype] if dtype in _DTYPES else Opaque(str(dtype).removeprefix("torch."), dtype.itemsize)


def _place_of(tensor: torch.Tensor) -> torch.device | str:
    return tensor.device if tensor.is_cuda else "cpu"


@contextmanager
def _in_memory() -> Iterator[None]:
    """Makes torch allocate real tensors even in FakeTensorMode and in `torch.func`."""
    with _disable_current_modes():
        if torch._C._functorch.peek_interpreter_stack() is None:
            yield
            return
        clear = getattr(pyfunctorch, "temporarily_clear_interpreter_stack", None)  # since torch 2.3
        with (clear or pyfunctorch.temporarily_pop_interpreter_stack)():
            yield
