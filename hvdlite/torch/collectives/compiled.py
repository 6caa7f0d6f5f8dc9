"""Blocking collectives for `torch.compile`: calls of the torch operators that `operators` registers.

This is hvdlite's only code that dynamo traces. A form in a graph binds its arguments to the parameters of the eager
form, and calls the operator for its kind of result. Process sets, compression, ``average``, and arguments that are not
plain end the graph, and the eager form runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch

from hvdlite import ops, session
from hvdlite.dynamo import outside_of_graphs
from hvdlite.ops import Average, ProcessSet, global_process_set
from hvdlite.ops.table import FORMS, Form, Result
from hvdlite.torch.collectives.operators import AUTOMATIC_NAME_BYTES, HAS_OPERATORS, order

Class = TypeVar("Class", bound=type)

_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)  # from torch 2.3 on


_TAKEN: Final = {
    *("tensor", "tensors", "name", "process_set", "average", "op", "prescale_factor", "postscale_factor"),
    *("compression", "root_rank", "rank", "splits"),
}
"""The parameters that calls in a graph take into account. A form with another one is called outside of graphs."""


def with_graphs(collectives: Class) -> Class:
    """Makes the blocking forms of a class operators in graphs, and returns the class."""
    for name, form in FORMS.items() if HAS_OPERATORS else ():
        is_agreed = form.collective.result is Result.AGREED
        if form.is_blocking and form.collective.is_public and not (is_agreed and form.collective.is_grouped):
            setattr(collectives, name, _with_graph(getattr(collectives, name), form))
    return collectives


def _with_graph(eager: Callable[..., Any], form: Form) -> Callable[..., Any]:
    outside = outside_of_graphs(eager)
    parameters = list(inspect.signature(eager).parameters.values())[1:]
    names = tuple(each.name for each in parameters)
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    is_taken = _TAKEN.issuperset(names)
    name, shapes_of, is_in_place = form.collective.name, _SHAPES.get(form.collective.result), form.is_in_place

    @functools.wraps(eager)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_compiling():
            return eager(self, *args, **kwargs)
        given = _bound(names, defaults, args, kwargs) if is_taken else None
        if given is None:
            result = None
        elif shapes_of is None:
            result = _exchanged(name, given)
        elif is_in_place:
            with torch.no_grad():
                result = _overwritten(given, _run_here(name, given, shapes_of))
        else:
            result = _run_here(name, given, shapes_of)
        return outside(self, *args, **kwargs) if result is None else result

    return call


def _bound(
    names: Sequence[str], defaults: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the arguments by name; None if they do not fit the parameters, so that the eager form refuses them."""
    given = dict(zip(names, args))  # noqa: B905 - traced
    if len(args) > len(names) or any(key in given or key not in names for key in kwargs):
        return None
    given = {**defaults, **given, **kwargs}
    return given if len(given) == len(names) else None


def _run_here(name: str, given: Mapping[str, Any], shapes_of: Callable[[Any, Any], Any]) -> Any:
    """Adds a collective whose result has a known shape. Returns None if a graph does not take it."""
    tensors = given["tensors"] if "tensors" in given else [given["tensor"]]
    if given.get("average") is not None or given.get("compression") is not None:
        return None
    op = Average if given.get("op") is None else given["op"]
    prescale, postscale = given.get("prescale_factor", 1.0), given.get("postscale_factor", 1.0)
    rank = given.get("root_rank", given.get("rank", 0))
    if not _are_plain(tensors, given, rank, op, prescale, postscale):
        return None
    shapes = shapes_of(tensors, rank)
    if shapes is None:
        return None
    call = (name, given["name"], op, float(prescale), float(postscale), rank)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        results = list(_Known.apply(call, shapes, *tensors))  # type: ignore[no-untyped-call]
    else:
        results, _ = _run(call, shapes, tensors)
    return results if "tensors" in given else results[0]


def _exchanged(name: str, given: Mapping[str, Any]) -> Any:
    """Adds a collective whose rows depend on other ranks. Returns None if a graph does not take it."""
    tensor, splits, rank = given["tensor"], given.get("splits"), given.get("root_rank", 0)
    if not _are_plain([tensor], given, rank):
        return None
    if not (splits is None or isinstance(splits, list)):
        return None
    if torch.is_grad_enabled() and tensor.requires_grad:  # inductor loses unknown sizes that go through a node
        return None
    rows, received_splits = torch.ops.hvdlite.exchange(order, tensor, name, given["name"], rank, splits)
    return (rows, received_splits) if name == "alltoall" and splits is not None else rows


def _overwritten(given: Mapping[str, Any], result: Any) -> Any:
    """Copies the result into the input, and returns the input."""
    if result is None:
        return None
    if "tensors" not in given:
        given["tensor"].detach().copy_(result)
        return given["tensor"]
    for tensor, each in zip(given["tensors"], result):  # noqa: B905 - traced
        tensor.detach().copy_(each)
    return list(given["tensors"])


def barrier(process_set: ProcessSet = global_process_set) -> None:
    if _is_compiling() and HAS_OPERATORS and process_set is global_process_set:
        torch.ops.hvdlite.collective(order, [], _receipt(None), [], "barrier", None, 0, 1.0, 1.0, 0)
    else:
        ops.barrier(process_set)


barrier.__doc__ = ops.barrier.__doc__


# ---- what a graph takes


def _are_plain(
    tensors: Any, given: Mapping[str, Any], rank: Any, op: Any = 0, prescale: Any = 1.0, postscale: Any = 1.0
) -> bool:
    return (
        given["process_set"] is global_process_set
        and isinstance(tensors, (list, tuple))
        and len(tensors) > 0
        and all(isinstance(each, torch.Tensor) and each.layout is torch.strided and each.is_cpu for each in tensors)
        and (given["name"] is None or isinstance(given["name"], str))
        and isinstance(op, int)
        and isinstance(prescale, (int, float))
        and isinstance(postscale, (int, float))
        and isinstance(rank, int)
    )


def _everyone() -> Any:
    """Returns the group of all ranks, whose size and rank become guards of the graph; None without a session."""
    current = session._current
    return None if current is None else current.everyone


def _shapes_of_own_rows(tensors: Sequence[torch.Tensor], rank: Any) -> list[Any] | None:
    group = _everyone()
    if group is None or any(tensor.dim() == 0 for tensor in tensors):
        return None
    size, own = group.size, group.rank
    shares = [tensor.shape[0] // size + (1 if own < tensor.shape[0] % size else 0) for tensor in tensors]
    return [(share, *tensor.shape[1:]) for share, tensor in zip(shares, tensors)]  # noqa: B905 - traced


def _shapes_on_root(tensors: Sequence[torch.Tensor], root: Any) -> list[Any] | None:
    group = _everyone()
    if group is None or any(tensor.dim() == 0 for tensor in tensors):
        return None
    return [tensor.shape if root == group.rank else (0, *tensor.shape[1:]) for tensor in tensors]


_SHAPES: Final[Mapping[Result, Callable[[Any, Any], Any]]] = {
    Result.ALIKE: lambda tensors, rank: [tensor.shape for tensor in tensors],
    Result.OWN_ROWS: _shapes_of_own_rows,
    Result.ALIKE_ON_ROOT: _shapes_on_root,
    Result.NOTHING: lambda tensors, rank: [() for _ in tensors],
}
"""The shapes of the results for the given tensors and root or peer, if this rank knows them."""


# ---- calls of the operators


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
        if form == "recv":  # its tensor only gave shape and dtype
            return None, None, None
        return None, None, *found
