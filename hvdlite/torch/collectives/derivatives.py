"""The rule of each collective: from the gradients of its results to the gradients of its inputs (`autograd`).

A collective and its grouped form have one rule; the gradient of a single tensor is a group of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from hvdlite.ops import OP_NAMES, Average, Max, Min, Product, Sum, group_of
from hvdlite.torch.collectives.autograd import Call, Rule, Tensors

Gradients = Sequence[torch.Tensor | None]


def _of_allreduce(call: Call, gradients: Tensors) -> Gradients:
    """Reduces the gradients in the same way."""
    _refuse_without_gradient(call.arguments["op"])
    same = {key: call.arguments[key] for key in ("average", "op", "prescale_factor", "postscale_factor")}
    return call.collectives.grouped_allreduce(gradients, **same, **call.meeting)


def _of_allgather(call: Call, gradients: Tensors) -> Gradients:
    """Averages over ranks; each rank takes the rows that it contributed."""
    averages = call.collectives.grouped_allreduce(gradients, op=Average, **call.meeting)
    index = group_of(call.arguments["process_set"]).rank
    return [
        average.narrow(0, sum(rows[:index]), rows[index]) for average, rows in zip(averages, call.rows, strict=True)
    ]


def _of_broadcast(call: Call, gradients: Tensors) -> Gradients:
    """Averages over ranks on the root; zeros elsewhere."""
    averages = call.collectives.grouped_allreduce(gradients, op=Average, **call.meeting)
    return averages if call.is_root else [torch.zeros_like(average) for average in averages]


def _of_alltoall(call: Call, gradients: Tensors) -> Gradients:
    """Sends every row back to its origin. Rows that were not sent have a gradient of zero."""
    returned = call.collectives.alltoall(gradients[0], splits=call.rows[0], **call.meeting)
    return [_filled_up(returned[0], call.shapes[0])]


def _of_reducescatter(call: Call, gradients: Tensors) -> Gradients:
    """Gathers the rows of all ranks, times the scale factors, and for a Sum times the number of ranks."""
    scale = call.arguments["prescale_factor"] * call.arguments["postscale_factor"]
    if call.arguments["op"] == Sum:
        scale *= call.arguments["process_set"].size()
    _refuse_without_gradient(call.arguments["op"])
    return call.collectives.grouped_allgather([scale * gradient for gradient in gradients], **call.meeting)


def _of_reduce(call: Call, gradients: Tensors) -> Gradients:
    """Broadcasts the root's gradient, scaled as the tensor was."""
    _refuse_without_gradient(call.arguments["op"])
    scale = call.arguments["prescale_factor"] * call.arguments["postscale_factor"]
    if call.arguments["op"] == Average:
        scale /= call.arguments["process_set"].size()
    gradient = gradients[0] if call.is_root else gradients[0].new_empty(call.shapes[0])
    return [call.collectives.broadcast_(scale * gradient, **call.root)]


def _of_gather(call: Call, gradients: Tensors) -> Gradients:
    """Scatters the root's gradient: each rank gets the part for its rows."""
    return [call.collectives.scatter(gradients[0], splits=call.rows[0], **call.root)]


def _of_scatter(call: Call, gradients: Tensors) -> Gradients:
    """Gathers the gradients of all rows on the root; zeros elsewhere."""
    gathered = call.collectives.gather(gradients[0], **call.root)
    return [_filled_up(gathered, call.shapes[0])]


def _of_send(call: Call, gradients: Tensors) -> Gradients:
    """Gets the gradient from the receiver. The result of `send` is a constant zero, whose gradient is ignored."""
    like = gradients[0].new_empty(call.shapes[0])
    return [call.collectives.recv_(like, call.arguments["rank"], **call.meeting)]


def _of_recv(call: Call, gradients: Tensors) -> Gradients:
    """Sends the gradient to the sender. The tensor that gave shape and dtype has no gradient."""
    call.collectives.send(gradients[0], call.arguments["rank"], **call.meeting)
    return [None]


def _refuse_without_gradient(op: Any) -> None:
    if op in (Min, Max, Product):
        raise RuntimeError(f"there is no gradient through op {OP_NAMES[op]}; use hvd.Sum or hvd.Average, or detach()")


def _filled_up(rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Fills up ``rows`` with zeros to ``shape``."""
    if rows.shape == shape:
        return rows
    return torch.cat([rows, rows.new_zeros(shape[0] - rows.shape[0], *shape[1:])])


RULES: Final[Mapping[str, Rule]] = {
    "allreduce": _of_allreduce,
    "grouped_allreduce": _of_allreduce,
    "allgather": _of_allgather,
    "grouped_allgather": _of_allgather,
    "broadcast": _of_broadcast,
    "alltoall": _of_alltoall,
    "reducescatter": _of_reducescatter,
    "grouped_reducescatter": _of_reducescatter,
    "reduce": _of_reduce,
    "gather": _of_gather,
    "scatter": _of_scatter,
    "send": _of_send,
    "recv": _of_recv,
}
"""The rule of each differentiable form, by its name."""
