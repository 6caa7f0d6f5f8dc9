"""Blocking collectives for `torch.compile`: calls of the torch operators that `operators` registers.

This is the only code of ours that dynamo traces. Each function here has the parameters of a collective and returns its
result, or None for what a graph does not take: process sets, compression, ``average``, and arguments that are not
plain. Then the graph ends, and the collective is called as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from hvdlite import ops, session
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.tensors.dtypes import Average
from hvdlite.torch.collectives.operators import AUTOMATIC_NAME_BYTES, HAS_OPERATORS, order
from hvdlite.untraced import outside_of_graphs

Class = TypeVar("Class", bound=type)

_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)  # from torch 2.3 on


def allreduce(
    tensor: Any,
    average: Any = None,
    name: Any = None,
    compression: Any = None,
    op: Any = None,
    prescale_factor: Any = 1.0,
    postscale_factor: Any = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    reduction = (Average if op is None else op, prescale_factor, postscale_factor)
    if average is not None or compression is not None or not _are_plain([tensor], name, process_set, *reduction):
        return None
    return _reduced("allreduce", [tensor], name, *reduction)[0]


def allreduce_(tensor: Any, average: Any = None, name: Any = None, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        result = allreduce(tensor, average, name, None, *args, **kwargs)
        return None if result is None else _overwritten(tensor, result)


def grouped_allreduce(
    tensors: Any,
    average: Any = None,
    name: Any = None,
    compression: Any = None,
    op: Any = None,
    prescale_factor: Any = 1.0,
    postscale_factor: Any = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    reduction = (Average if op is None else op, prescale_factor, postscale_factor)
    if average is not None or compression is not None or not _are_plain(tensors, name, process_set, *reduction):
        return None
    return _reduced("grouped_allreduce", tensors, name, *reduction)


def grouped_allreduce_(tensors: Any, average: Any = None, name: Any = None, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        results = grouped_allreduce(tensors, average, name, None, *args, **kwargs)
        if results is None:
            return None
        return [_overwritten(tensor, result) for tensor, result in zip(tensors, results)]  # noqa: B905 - traced


def reducescatter(
    tensor: Any,
    name: Any = None,
    compression: Any = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: Any = 1.0,
    postscale_factor: Any = 1.0,
) -> Any:
    reduction = (op, prescale_factor, postscale_factor)
    if compression is not None or not _are_plain([tensor], name, process_set, *reduction):
        return None
    shapes = _rows_of_this_rank([tensor])
    return None if shapes is None else _known("reducescatter", [tensor], shapes, name, *reduction)[0]


def grouped_reducescatter(
    tensors: Any,
    name: Any = None,
    compression: Any = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: Any = 1.0,
    postscale_factor: Any = 1.0,
) -> Any:
    reduction = (op, prescale_factor, postscale_factor)
    if compression is not None or not _are_plain(tensors, name, process_set, *reduction):
        return None
    shapes = _rows_of_this_rank(tensors)
    return None if shapes is None else _known("grouped_reducescatter", tensors, shapes, name, *reduction)


def reduce(
    tensor: Any,
    root_rank: Any,
    name: Any = None,
    op: Any = Average,
    prescale_factor: Any = 1.0,
    postscale_factor: Any = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    reduction = (op, prescale_factor, postscale_factor)
    group = _everyone()
    if group is None or not _are_plain([tensor], name, process_set, *reduction, root_rank) or tensor.dim() == 0:
        return None
    shape = tensor.shape if root_rank == group.rank else (0, *tensor.shape[1:])
    return _known("reduce", [tensor], [shape], name, *reduction, rank=root_rank)[0]


def broadcast(tensor: Any, root_rank: Any, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    if not _are_plain([tensor], name, process_set, rank=root_rank):
        return None
    return _known("broadcast", [tensor], [tensor.shape], name, rank=root_rank)[0]


def broadcast_(tensor: Any, root_rank: Any, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    with torch.no_grad():
        result = broadcast(tensor, root_rank, name, process_set)
        return None if result is None else _overwritten(tensor, result)


def send(tensor: Any, rank: Any, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    if not _are_plain([tensor], name, process_set, rank=rank):
        return None
    return _known("send", [tensor], [()], name, rank=rank)[0]


def recv(tensor: Any, rank: Any, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    if not _are_plain([tensor], name, process_set, rank=rank):
        return None
    return _known("recv", [tensor], [tensor.shape], name, rank=rank)[0]


def recv_(tensor: Any, rank: Any, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    with torch.no_grad():
        result = recv(tensor, rank, name, process_set)
        return None if result is None else _overwritten(tensor, result)


def allgather(tensor: Any, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    pair = _exchanged("allgather", tensor, None, name, process_set)
    return None if pair is None else pair[0]


def alltoall(tensor: Any, splits: Any = None, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    pair = _exchanged("alltoall", tensor, splits, name, process_set)
    return pair if splits is not None or pair is None else pair[0]


def gather(tensor: Any, root_rank: Any, name: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    pair = _exchanged("gather", tensor, None, name, process_set, root_rank)
    return None if pair is None else pair[0]


def scatter(
    tensor: Any,
    root_rank: Any,
    splits: Any = None,
    name: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    pair = _exchanged("scatter", tensor, splits, name, process_set, root_rank)
    return None if pair is None else pair[0]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    if _is_compiling() and HAS_OPERATORS and process_set is global_process_set:
        torch.ops.hvdlite.collective(order, [], _receipt(None), [], "barrier", None, 0, 1.0, 1.0, 0)
    else:
        ops.barrier(process_set)


barrier.__doc__ = ops.barrier.__doc__


def with_graphs(collectives: Class) -> Class:
    """Returns the class itself. For its methods dynamo traces the functions above of the same names."""
    for name, form in list(globals().items()) if HAS_OPERATORS else ():
        eager = getattr(collectives, name, None)
        if eager is not None and getattr(form, "__module__", "") == __name__:
            made = _with_graph(eager, form)
            setattr(collectives, name, _allreduce_(eager, made) if form is allreduce_ else made)
    return collectives


def _with_graph(eager: Callable[..., Any], in_graph: Callable[..., Any]) -> Callable[..., Any]:
    outside = outside_of_graphs(eager)

    @functools.wraps(eager)
    def form(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            result = in_graph(*args, **kwargs)
            return outside(self, *args, **kwargs) if result is None else result
        return eager(self, *args, **kwargs)

    return form


def _allreduce_(eager: Callable[..., Any], with_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Spells out the parameters, because passing on ``*args`` is a noticeable part of this shortest call."""

    @functools.wraps(eager)
    def form(
        self: Any,
        tensor: Any,
        average: Any = None,
        name: Any = None,
        op: Any = None,
        prescale_factor: Any = 1.0,
        postscale_factor: Any = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        call = with_graph if _is_compiling() else eager
        return call(self, tensor, average, name, op, prescale_factor, postscale_factor, process_set)

    return form


# ---- what a graph takes


def _are_plain(
    tensors: Any,
    name: Any,
    process_set: Any,
    op: Any = 0,
    prescale: Any = 1.0,
    postscale: Any = 1.0,
    rank: Any = 0,
) -> bool:
    return (
        process_set is global_process_set
        and isinstance(tensors, (list, tuple))
        and len(tensors) > 0
        and all(isinstance(each, torch.Tensor) and each.layout is torch.strided and each.is_cpu for each in tensors)
        and (name is None or isinstance(name, str))
        and isinstance(op, int)
        and isinstance(prescale, (int, float))
        and isinstance(postscale, (int, float))
        and isinstance(rank, int)
    )


def _everyone() -> Any:
    """Returns the group of all ranks, whose size and rank become guards of the graph; None without a session."""
    current = session._current
    return None if current is None else current.everyone


def _rows_of_this_rank(tensors: Sequence[torch.Tensor]) -> list[Any] | None:
    group = _everyone()
    if group is None or any(tensor.dim() == 0 for tensor in tensors):
        return None
    return [(_share(tensor.shape[0], group.size, group.rank), *tensor.shape[1:]) for tensor in tensors]


def _share(rows: int, size: int, rank: int) -> int:
    return rows // size + (1 if rank < rows % size else 0)


def _overwritten(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    tensor.detach().copy_(result)
    return tensor


# ---- calls of the operators


def _reduced(form: str, tensors: Any, name: Any, op: Any, prescale: Any, postscale: Any) -> Any:
    return _known(form, tensors, [tensor.shape for tensor in tensors], name, op, prescale, postscale)


def _known(
    form: str,
    tensors: Any,
    shapes: Any,
    name: Any,
    op: Any = 0,
    prescale: Any = 1.0,
    postscale: Any = 1.0,
    rank: Any = 0,
) -> list[torch.Tensor]:
    call = (form, name, op, float(prescale), float(postscale), rank)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Known.apply(call, shapes, *tensors))  # type: ignore[no-untyped-call]
    outputs, _ = _run(call, shapes, tensors)
    return outputs


def _run(call: Any, shapes: Any, tensors: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    form, name, *_ = call
    is_send = form == "send"
    outputs = [
        (tensor.new_zeros if is_send else tensor.new_empty)(shape)
        for tensor, shape in zip(tensors, shapes)  # noqa: B905
    ]
    receipt = _receipt(name)
    torch.ops.hvdlite.collective(order, [] if is_send else outputs, receipt, list(tensors), *call)
    return outputs, receipt


def _receipt(name: str | None) -> torch.Tensor:
    """Makes a tensor that holds the name of a collective, given the user's name for it."""
    return torch.empty(AUTOMATIC_NAME_BYTES + 4 * len(name or ""), dtype=torch.uint8, device="cpu")


def _exchanged(form: str, tensor: Any, splits: Any, name: Any, process_set: Any, rank: Any = 0) -> Any:
    if not _are_plain([tensor], name, process_set, rank=rank) or not (splits is None or isinstance(splits, list)):
        return None
    if torch.is_grad_enabled() and tensor.requires_grad:  # inductor loses unknown sizes that go through a node
        return None
    return torch.ops.hvdlite.exchange(order, tensor, form, name, rank, splits)


class _Known(torch.autograd.Function):
    """The autograd node of a collective whose results have known shapes."""

    @staticmethod
    def forward(context: Any, call: Any, shapes: Any, *tensors: torch.Tensor) -> Any:
        outputs, receipt = _run(call, shapes, tensors)
        context.call = call
        context.shapes = [tensor.shape for tensor in tensors]
        context.save_for_backward(receipt)
        return tuple(outputs)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        (receipt,) = context.saved_tensors
        form, _, op, prescale, postscale, rank = context.call
        found = [gradient.new_empty(shape) for gradient, shape in zip(gradients, context.shapes)]  # noqa: B905
        torch.ops.hvdlite.backward(order, found, list(gradients), receipt, form, op, prescale, postscale, rank)
        if form == "recv":  # its tensor only said what to receive
            return None, None, None
        return None, None, *found
