"""Parameters, optimizer state and objects, made equal on all ranks."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from hvdlite.compat import stands_for_horovod
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.ops.objects import broadcast_bytes
from hvdlite.session import rank
from hvdlite.torch.collectives.adapter import dense, expanded
from hvdlite.torch.collectives.tensors import collectives

Named = tuple[str, torch.Tensor]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites tensors with those of ``root_rank``, a rank's number in the job, in place.

    ``params`` is ``model.state_dict()``, ``model.named_parameters()``, or a list of tensors or of (name, tensor) pairs,
    with the same names, shapes and dtypes on all ranks. Entries that are None are skipped. Raises ValueError for an
    entry that is no tensor, and HorovodInternalError if ranks do not fit together.
    """
    _broadcast_all(_named(params), root_rank, process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the state and hyper-parameters that ``root_rank`` has, without taking a step.

    Every rank ends by loading the same state dict, as from a checkpoint. The optimizer may be wrapped or bare. Where
    hvdlite stands for Horovod, the gradients of an optimizer that had no state are zeros afterwards, as there, and
    sparse ones for the sparse embeddings of ``model``, which is not used otherwise. Raises ValueError for LBFGS, whose
    state is that of the last step on one rank's own data.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast the state of torch.optim.LBFGS; all ranks must start it without state")
    leaves_zeros = stands_for_horovod() and not optimizer.state_dict()["state"]
    state = optimizer.state_dict() if rank() == root_rank else None
    tensors: list[torch.Tensor] = []

    def broadcast_tensors(data: memoryview) -> None:
        nonlocal state
        if state is None:
            state = _load(data, tensors)
        named = [(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)]
        _broadcast_all(named, root_rank, process_set)

    broadcast_bytes(lambda: _dump(state, tensors), root_rank, "optimizer_state", process_set, broadcast_tensors)
    assert state is not None
    optimizer.load_state_dict(state)
    if leaves_zeros:
        _zero_gradients(optimizer, model)


def _zero_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """What remains of the step on zeros by which Horovod makes the state of an optimizer."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Embedding)] if model is not None else []
    sparse = {layer.weight for layer in layers if layer.sparse and isinstance(optimizer, torch.optim.SGD)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                zeros = torch.zeros_like(parameter)
                is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or parameter in sparse
                parameter.grad = zeros.to_sparse(1) if is_sparse else zeros


def _named(params: Any) -> list[Named]:
    if isinstance(params, (torch.Tensor, torch.nn.Module)):
        raise ValueError(f"expected a model's state_dict() or parameters, got a {type(params).__name__}")
    if isinstance(params, Mapping):
        pairs = [(key, params[key]) for key in sorted(params)]
    else:
        pairs = [
            entry if isinstance(entry, tuple) and len(entry) == 2 else (f"noname.{index}", entry)
            for index, entry in enumerate(params)
        ]
    for key, value in pairs:
        if value is not None and not isinstance(value, torch.Tensor):
            raise ValueError(f"broadcast_parameters takes tensors, but {key!r} is a {type(value).__name__}")
    return [(f"parameter.{key}", value) for key, value in pairs if value is not None]


@torch.no_grad()
def _broadcast_all(tensors: list[Named], root_rank: int, process_set: ProcessSet) -> None:
    received_all = collectives.broadcast_all_(
        [(name, dense(tensor)) for name, tensor in tensors], root_rank, process_set
    )
    for (_, tensor), received in zip(tensors, received_all, strict=True):
        if received is not tensor:
            _overwrite(tensor, received)


def _overwrite(tensor: torch.Tensor, received: torch.Tensor) -> None:
    """Copies into a tensor that may be expanded: elements that share memory are written once."""
    target, source = tensor, received
    for dimension in expanded(tensor):
        target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    with torch.inference_mode() if tensor.is_inference() else nullcontext():
        target.copy_(source)
    if target is not tensor and not torch.equal(tensor, received):
        raise ValueError("a tensor that is expanded on this rank is not on the root; pass tensor.clone()")


def _dump(state: Any, tensors: list[torch.Tensor]) -> bytes:
    """Pickles ``state`` without the contents of its tensors, which are appended to ``tensors``."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, torch.Tensor):
                return None
            tensors.append(obj.detach())
            return tuple(obj.shape), obj.dtype

    stream = io.BytesIO()
    Pickler(stream).dump(state)
    return stream.getvalue()


def _load(data: memoryview, tensors: list[torch.Tensor]) -> Any:
    """The state that was dumped, with empty tensors, which are appended to ``tensors`` in the same order."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> torch.Tensor:
            shape, dtype = pid
            tensors.append(torch.empty(shape, dtype=dtype, device="cpu"))
            return tensors[-1]

    return Unpickler(io.BytesIO(data)).load()
