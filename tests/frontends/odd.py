"""Kinds of tensors that are not plain: `ODD` has them by name."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hvdlite.torch as hvd


class Odd(NamedTuple):
    """A kind of tensor: how ``rank`` makes one, and why it is refused, in place or at all."""

    make: Callable[[int], torch.Tensor]
    refusal: str = ""
    in_place: str = ""


class Wrapper(torch.Tensor):
    """A tensor that has another one inside, and no memory of its own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inside(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapper) else value

        result = function(*map(inside, args), **{key: inside(value) for key, value in (kwargs or {}).items()})
        return Wrapper(result) if isinstance(result, torch.Tensor) else result


def memory_of_torch(rank: int) -> torch.Tensor:
    """A tensor whose data are those of another."""
    tensor = torch.zeros(7)
    tensor.data = (torch.arange(4.0) % 3 + rank).clone()
    return tensor


@cache
def _mesh() -> Any:
    """A mesh of this process alone, which is enough for tensors to be distributed."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(os.path.join(folder, "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


def distributed(tensor: torch.Tensor, how: str) -> Any:
    """``tensor`` as a DTensor, or the parameter of a module that is fully sharded."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    if how == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        layer = torch.nn.Linear(2, 2, bias=False)
        fully_shard(layer, mesh=_mesh())
        return layer.weight
    return distribute_tensor(tensor, _mesh(), [Shard(0) if how == "shard" else Replicate()])


def in_transform(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a function sees it that torch transforms."""
    seen: list[torch.Tensor] = []

    def function(inner: torch.Tensor) -> torch.Tensor:
        seen.append(inner)
        return inner.sum() if name == "grad" else inner

    getattr(torch.func, name)(function)(tensor)
    return seen[0]


def values(rank: int, *shape: int) -> torch.Tensor:
    """Whole numbers of which sums are exact in every dtype."""
    return (torch.arange(max(1, int(np.prod(shape))), dtype=torch.float32)[: int(np.prod(shape))] % 3 + rank).view(
        shape
    )


def has_sums(dtype: torch.dtype) -> bool:
    names = "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 bool complex32 complex64 complex128"
    return str(dtype).removeprefix("torch.") in names.split()


STRIDED = "not contiguous cannot be written in place"
FLIPPED = "negatives or conjugates of its memory"
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
BYTES = tuple(getattr(torch, name) for name in "uint16 uint32 uint64 float8_e4m3fn float8_e5m2".split())


def complex_values(rank: int, *shape: int) -> torch.Tensor:
    return torch.complex(values(rank, *shape), values(rank + 1, *shape))


def resized(rank: int, nbytes: int) -> torch.Tensor:
    tensor = values(rank, 4)
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def _misaligned(rank: int, dtype: torch.dtype) -> torch.Tensor:
    memory = np.zeros(1 + 4 * dtype.itemsize, np.uint8)
    tensor = torch.frombuffer(memory, dtype=dtype, offset=1, count=4)
    return tensor.copy_(values(rank, 4).to(dtype))


def _read_only(rank: int) -> torch.Tensor:
    array = values(rank, 4).numpy()
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def _fake(rank: int) -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4)


@torch.inference_mode()
def _inference(rank: int) -> torch.Tensor:
    return values(rank, 4) + 0


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


ODD: dict[str, Odd] = {
    "plain": Odd(lambda rank: values(rank, 4)),
    "two dimensions": Odd(lambda rank: values(rank, 4, 3)),
    "no dimensions": Odd(lambda rank: values(rank, 1)[0].clone()),
    "an element of another": Odd(lambda rank: values(rank, 3)[1]),
    "no elements": Odd(lambda rank: values(rank, 0)),
    "no columns": Odd(lambda rank: values(rank, 4, 0)),
    "no rows": Odd(lambda rank: values(rank, 0, 3)),
    "parameter": Odd(lambda rank: torch.nn.Parameter(values(rank, 4))),
    "frozen parameter": Odd(lambda rank: torch.nn.Parameter(values(rank, 4), requires_grad=False)),
    "buffer": Odd(lambda rank: torch.nn.Buffer(values(rank, 4)) if hasattr(torch.nn, "Buffer") else values(rank, 4)),
    "requires a gradient": Odd(lambda rank: values(rank, 4).requires_grad_()),
    "not a leaf": Odd(lambda rank: values(rank, 4).requires_grad_() * 1),
    "inference": Odd(_inference),
    "subclass": Odd(lambda rank: values(rank, 4).as_subclass(Plain)),
    "subclass, transposed": Odd(lambda rank: values(rank, 4, 3).as_subclass(Plain).t(), in_place=STRIDED),
    # memory in another order, or with holes
    "transposed": Odd(lambda rank: values(rank, 4, 6).t(), in_place=STRIDED),
    "every second": Odd(lambda rank: values(rank, 8)[::2], in_place=STRIDED),
    "a column": Odd(lambda rank: values(rank, 4, 3)[:, 1], in_place=STRIDED),
    "columns": Odd(lambda rank: values(rank, 4, 3)[:, 1:], in_place=STRIDED),
    "rows": Odd(lambda rank: values(rank, 6, 3)[2:]),
    "expanded": Odd(lambda rank: values(rank, 1, 3).expand(4, 3), in_place=STRIDED),
    "expanded columns": Odd(lambda rank: values(rank, 4, 1).expand(4, 3), in_place=STRIDED),
    "expanded number": Odd(lambda rank: values(rank, 1)[0].expand(4), in_place=STRIDED),
    "overlapping": Odd(lambda rank: values(rank, 6).as_strided((4, 2), (1, 1)), in_place=STRIDED),
    "channels last": Odd(
        lambda rank: values(rank, 2, 3, 2, 2).contiguous(memory_format=torch.channels_last), in_place=STRIDED
    ),
    "permuted": Odd(lambda rank: values(rank, 2, 4, 2).permute(1, 0, 2), in_place=STRIDED),
    "flipped": Odd(lambda rank: values(rank, 4).flip(0)),
    "real part": Odd(lambda rank: complex_values(rank, 4).real, in_place=STRIDED),
    "imaginary part": Odd(lambda rank: complex_values(rank, 4).imag, in_place=STRIDED),
    "view as real": Odd(lambda rank: torch.view_as_real(complex_values(rank, 4))),
    "misaligned float32": Odd(lambda rank: _misaligned(rank, torch.float32), in_place="not aligned"),
    "misaligned int64": Odd(lambda rank: _misaligned(rank, torch.int64), in_place="not aligned"),
    "misaligned complex": Odd(lambda rank: _misaligned(rank, torch.complex64), in_place="not aligned"),
    # memory that is not its values
    "negative": Odd(lambda rank: torch._neg_view(values(rank, 4)), in_place=FLIPPED),
    "negative, transposed": Odd(lambda rank: torch._neg_view(values(rank, 4, 2)).t(), in_place=FLIPPED),
    "negative of one": Odd(lambda rank: complex_values(rank, 1).conj().imag, in_place=FLIPPED),
    "negative of none": Odd(lambda rank: complex_values(rank, 0).conj().imag, in_place=FLIPPED),
    "negative, detached": Odd(lambda rank: torch._neg_view(values(rank, 4)).detach(), in_place=FLIPPED),
    "negative data": Odd(lambda rank: torch._neg_view(values(rank, 4)).data, in_place=FLIPPED),
    "negative parameter": Odd(lambda rank: torch.nn.Parameter(torch._neg_view(values(rank, 4))), in_place=FLIPPED),
    "negative integers": Odd(lambda rank: torch._neg_view(values(rank, 4).int()), in_place=FLIPPED),
    "conjugate": Odd(lambda rank: complex_values(rank, 4).conj(), in_place=FLIPPED),
    "conjugate, transposed": Odd(lambda rank: complex_values(rank, 4, 2).mH, in_place=FLIPPED),
    "negative conjugate": Odd(lambda rank: torch._neg_view(complex_values(rank, 4).conj()), in_place=FLIPPED),
    "lazy copy": Odd(
        lambda rank: torch._lazy_clone(values(rank, 4)) if hasattr(torch, "_lazy_clone") else values(rank, 4)
    ),
    # memory of others
    "of numpy": Odd(lambda rank: torch.from_numpy(values(rank, 4).numpy())),
    "of a read-only array": Odd(_read_only),
    "of a buffer": Odd(
        lambda rank: torch.frombuffer(bytearray(values(rank, 4).numpy().tobytes()), dtype=torch.float32)
    ),
    "shared": Odd(lambda rank: values(rank, 4).share_memory_()),
    "hvd.shared_empty": Odd(lambda rank: hvd.shared_empty(4, dtype=torch.float32).copy_(values(rank, 4))),
    "from dlpack": Odd(lambda rank: torch.from_dlpack(values(rank, 4))),
    "set to another storage": Odd(lambda rank: torch.empty(0).set_(values(rank, 4).untyped_storage(), 0, (4,))),
    "with other data": Odd(memory_of_torch),
    "storage grown": Odd(lambda rank: resized(rank, 64)),
    "storage resized to 0": Odd(lambda rank: resized(rank, 0), "storage was resized"),
    # no memory
    "zeros never made": Odd(lambda rank: torch._efficientzerotensor(4), "has no memory"),
    "meta": Odd(lambda rank: torch.ones(4, device="meta"), "device meta is not supported"),
    "fake": Odd(_fake, "FakeTensor, which has no values"),
    "wrapper": Odd(lambda rank: Wrapper(values(rank, 4)), "Wrapper, which has no memory of its own"),
    "parameter of a wrapper": Odd(
        lambda rank: torch.nn.Parameter(Wrapper(values(rank, 4)), requires_grad=False), "has no memory of its own"
    ),
    "masked": Odd(
        lambda rank: torch.masked.masked_tensor(values(rank, 4), torch.tensor([True, False] * 2)),
        "no memory of its own",
    ),
    "in vmap": Odd(lambda rank: in_transform("vmap", values(rank, 2, 4)), "inside torch.func"),
    "in functionalize": Odd(lambda rank: in_transform("functionalize", values(rank, 4)), "inside torch.func"),
    "functional": Odd(lambda rank: torch._to_functional_tensor(values(rank, 4)), "has no memory"),
    "uninitialized": Odd(lambda rank: torch.nn.UninitializedParameter(), "not initialized has no memory"),
    # other layouts
    "sparse": Odd(lambda rank: values(rank, 4, 3).to_sparse(), "pass tensor.to_dense()"),
    "sparse, hybrid": Odd(lambda rank: values(rank, 4, 3).to_sparse(1), "pass tensor.to_dense()"),
    "sparse rows": Odd(lambda rank: values(rank, 4, 3).to_sparse_csr(), "pass tensor.to_dense()"),
    "sparse columns": Odd(lambda rank: values(rank, 4, 3).to_sparse_csc(), "pass tensor.to_dense()"),
    "sparse blocks": Odd(lambda rank: values(rank, 4, 2).to_sparse_bsr((2, 2)), "pass tensor.to_dense()"),
    "mkldnn": Odd(lambda rank: values(rank, 4, 3).to_mkldnn(), "pass tensor.to_dense()"),
    "nested": Odd(lambda rank: torch.nested.nested_tensor([values(rank, 2), values(rank, 3)]), "nested"),
    "nested, jagged": Odd(
        lambda rank: torch.nested.nested_tensor([values(rank, 2), values(rank, 3)], layout=torch.jagged), "(?i)nested"
    ),
    "quantized": Odd(
        lambda rank: torch.quantize_per_tensor(values(rank, 4), 1.0, 0, torch.qint8), "pass tensor.int_repr()"
    ),
    # element types
    **{
        f"{dtype}".removeprefix("torch."): Odd(lambda rank, dtype=dtype: values(rank, 4).to(dtype))  # type: ignore[misc]
        for dtype in (
            *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
            *(torch.float16, torch.bfloat16, torch.float32, torch.float64, *COMPLEX, *BYTES),
        )
    },
    **{
        f"{dtype}, transposed".removeprefix("torch."): Odd(
            lambda rank, dtype=dtype: values(rank, 4, 2).to(dtype).t().contiguous().t(),  # type: ignore[misc]
            in_place=STRIDED,
        )
        for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.uint16, torch.float8_e4m3fn)
    },
    "bits8": Odd(lambda rank: values(rank, 4).to(torch.uint8).view(torch.bits8)),
    "bits16": Odd(lambda rank: values(rank, 4).to(torch.int16).view(torch.bits16)),
    # what is no tensor
    "list": Odd(lambda rank: [1.0], "list"),  # type: ignore[arg-type,return-value]
    "array": Odd(lambda rank: np.ones(4), "ndarray"),  # type: ignore[arg-type,return-value]
    "storage": Odd(lambda rank: values(rank, 4).untyped_storage(), "UntypedStorage"),  # type: ignore[arg-type,return-value]
    # distributed by torch, and so last: from then on each DistributedOptimizer looks for DDP's modules
    "DTensor, replicated": Odd(lambda rank: distributed(values(rank, 4), "replicate"), "pass tensor.to_local()"),
    "DTensor, sharded": Odd(lambda rank: distributed(values(rank, 4), "shard"), "pass tensor.to_local()"),
    "DTensor, parameter": Odd(
        lambda rank: torch.nn.Parameter(distributed(values(rank, 4), "shard")), "pass tensor.to_local()"
    ),
    "of fully_shard": Odd(lambda rank: distributed(values(rank, 4), "fully_shard"), "pass tensor.to_local()"),
}


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """A plain copy, by torch's own means."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().resolve_conj().resolve_neg()
        plain = plain.view(_SHOWN.get(plain.dtype, plain.dtype))
        return plain.clone(memory_format=torch.contiguous_format).as_subclass(torch.Tensor)


_SHOWN = {torch.bits8: torch.uint8, torch.bits16: torch.int16}  # torch does little with these


def bytes_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    plain = values_of(tensor)
    return plain.dtype, tuple(plain.shape), plain.flatten().view(torch.uint8).tolist() if plain.numel() else []
