"""Makes parameters and optimizer state equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hvdlite.compat import stands_for_horovod
from hvdlite.ops import ProcessSet, global_process_set, group_of
from hvdlite.session import rank
from hvdlite.torch.collectives.adapter import dense, expanded
from hvdlite.torch.collectives.tensors import collectives
from hvdlite.training.broadcasting import broadcast_all, broadcast_state, named


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites tensors with those of ``root_rank``, a rank's number in the job, in place.

    ``params`` is ``model.state_dict()``, ``model.named_parameters()``, or a list of tensors or of (name, tensor) pairs,
    with the same names, shapes and dtypes on all ranks. Entries that are None are skipped. Raises ValueError for an
    entry that is no tensor, and HorovodInternalError if ranks disagree about them.
    """
    if isinstance(params, (torch.Tensor, torch.nn.Module)):
        raise ValueError(f"expected a model's state_dict() or parameters, got a {type(params).__name__}")
    broadcast_all(named(params, torch.Tensor), root_rank, group_of(process_set), collectives, _STORE)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the state and hyper-parameters of ``root_rank``, without taking a step.

    Every rank loads the same state dict, as from a checkpoint. The optimizer may be wrapped or bare. Where hvdlite
    stands in for Horovod, an optimizer that had no state has zero gradients afterwards, as with Horovod, and sparse
    ones for the sparse embeddings of ``model``, which is not used otherwise. Raises ValueError for LBFGS, whose state
    depends on one rank's own data.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast the state of torch.optim.LBFGS; all ranks must start it without state")
    leaves_zeros = stands_for_horovod() and not optimizer.state_dict()["state"]
    state = optimizer.state_dict() if rank() == root_rank else None
    group = group_of(process_set)
    optimizer.load_state_dict(broadcast_state(state, "optimizer_state", root_rank, group, collectives, _State()))
    if leaves_zeros:
        _zero_gradients(optimizer, model)


def _zero_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Sets the zero gradients that Horovod leaves, because it makes an optimizer's state by a step on zeros."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Embedding)] if model is not None else []
    sparse = {layer.weight for layer in layers if layer.sparse and isinstance(optimizer, torch.optim.SGD)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                zeros = torch.zeros_like(parameter)
                is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or parameter in sparse
                parameter.grad = zeros.to_sparse(1) if is_sparse else zeros


class _Tensors:
    """The store of torch: a tensor is its own value."""

    kind = torch.Tensor

    @torch.no_grad()
    def read(self, variable: torch.Tensor) -> torch.Tensor:
        return dense(variable)

    @torch.no_grad()
    def write(self, variable: torch.Tensor, received: torch.Tensor) -> None:
        """Copies into a tensor that may be expanded. Elements that share memory are written once."""
        target, source = variable, received
        for dimension in expanded(variable):
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
        with torch.inference_mode() if variable.is_inference() else nullcontext():
            target.copy_(source)
        if target is not variable and not torch.equal(variable, received):
            raise ValueError("a tensor that is expanded on this rank is not on the root; pass tensor.clone()")


class _State(_Tensors):
    """The store that also makes tensors, on the device and in the stream that are current where the store is made."""

    def __init__(self) -> None:
        has_gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream() if has_gpus else None

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def description(self, variable: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype, str]:
        return tuple(variable.shape), variable.dtype, "cuda" if variable.is_cuda else "cpu"

    def make(self, description: tuple[tuple[int, ...], torch.dtype, str]) -> torch.Tensor:
        """Makes a tensor, on a GPU only if this rank uses one."""
        shape, dtype, kind = description
        return torch.empty(shape, dtype=dtype, device="cpu" if self._stream is None else kind)


_STORE = _Tensors()
