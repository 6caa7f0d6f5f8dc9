"""Gradients through collectives: the gradient of a collective is another collective, which ranks run in backward.

The gradients are Horovod's: of the average of all ranks' losses (`allgather`, `broadcast`), or scaled
(`reducescatter`). Integers have none. A rule takes the forward call and, for each tensor that has a gradient, the
tensor, the number of rows from each rank if the call gathers, and the gradient of the result. It returns the gradients
of these tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from hvdlite.ops import OP_NAMES, Average, Max, Min, Product, Sum, group_of
from hvdlite.session import rank
from hvdlite.tensorflow.collectives.names import suffixed
from hvdlite.tensorflow.operation.calls import Call
from hvdlite.tensorflow.operation.graphs import is_saving
from hvdlite.tensorflow.operation.running import run

Rule = Callable[[Call, Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]


def cross(form: str, tensors: Sequence[Any], *, only_for: int | None = None, **arguments: Any) -> list[Any]:
    """Runs a collective with a gradient, and returns its results.

    What the caller does with them may be right ``only_for`` one rank (see `Call`).
    """
    call = Call(form, arguments, only_for)
    if not any(map(_has_gradient, tensors)):
        return run(call, tensors)

    def crossing(*inputs: Any) -> tuple[list[Any], Callable[..., Any]]:
        results = run(call, inputs)

        def backward(*gradients: Any) -> list[Any]:
            return _gradients(call, inputs, results, gradients)

        return results, backward

    return list(tf.custom_gradient(crossing)(*tensors))


def _has_gradient(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _gradients(call: Call, inputs: Sequence[Any], results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Applies the rule of ``call`` to the tensors that have a gradient."""
    chosen = [index for index in range(len(inputs)) if _has_gradient(inputs[index])]
    count = len(inputs) if call.is_grouped else 1
    of_rows = [results[count + index] for index in chosen] if call.gathers else []
    found = _RULES[call.form](
        call,
        [inputs[index] for index in chosen],
        of_rows,
        [tf.convert_to_tensor(gradients[index]) for index in chosen],
    )
    by_index = dict(zip(chosen, found, strict=True))
    return [by_index.get(index) for index in range(len(inputs))]


def _meeting(call: Call) -> dict[str, Any]:
    """The arguments that every collective takes, for the gradient's collective."""
    return {"name": suffixed(call.arguments["name"], ".backward"), "process_set": call.process_set}


def _of_allreduce(call: Call, inputs: Sequence[Any], rows: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
    """Reduces the gradients in the same way."""
    if refusal := _refusal(call):
        return _failing(refusal, gradients)
    return cross(call.form, gradients, **{**call.arguments, **_meeting(call)})


def _of_allgather(call: Call, inputs: Sequence[Any], rows: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
    """Averages over ranks; each rank takes the rows that it contributed."""
    averages = cross("grouped_allreduce", gradients, only_for=rank(), op=Average, **_meeting(call))
    index = group_of(call.process_set).rank
    own = []
    for average, each, tensor in zip(averages, rows, inputs, strict=True):
        begin = tf.reduce_sum(each[:index])
        part = average[begin : begin + each[index]]
        part.set_shape(tensor.shape)
        own.append(part)
    return own


def _of_broadcast(call: Call, inputs: Sequence[Any], rows: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
    """Averages over ranks on the root; zeros elsewhere."""
    averages = cross("grouped_allreduce", gradients, only_for=rank(), op=Average, **_meeting(call))
    if call.arguments["root_rank"] == rank():
        return averages
    with tf.control_dependencies(averages):  # a session would leave out what the zeros do not need
        return [tf.zeros_like(average) for average in averages]


def _of_alltoall(call: Call, inputs: Sequence[Any], rows: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
    """Sends every row back to its origin. Rows that were not sent have a gradient of zero."""
    returned, _ = cross("alltoall", [gradients[0], rows[0]], **_meeting(call))
    missing = tf.shape(inputs[0])[0] - tf.shape(returned)[0]
    padding = [[0, missing], *([0, 0] for _ in range(returned.shape.rank - 1))]
    filled = tf.pad(returned, padding)
    filled.set_shape(inputs[0].shape)
    return [filled]


def _of_reducescatter(
    call: Call, inputs: Sequence[Any], rows: Sequence[Any], gradients: Sequence[Any]
) -> Sequence[Any]:
    """Gathers the rows of all ranks, times the scale factors, and for a Sum times the number of ranks."""
    if refusal := _refusal(call):
        return _failing(refusal, gradients)
    scale = call.arguments["prescale_factor"] * call.arguments["postscale_factor"]
    if call.arguments["op"] == Sum:
        scale *= group_of(call.process_set).size
    gathered = cross("grouped_allgather", [tf.cast(scale, each.dtype) * each for each in gradients], **_meeting(call))
    return gathered[: len(gradients)]


def _refusal(call: Call) -> str:
    op = call.arguments["op"]
    has_none = op in (Min, Max, Product)
    return f"there is no gradient through op {OP_NAMES[op]}; use hvd.Sum or hvd.Average" if has_none else ""


def _failing(refusal: str, gradients: Sequence[Any]) -> Sequence[Any]:
    """Raises the refusal; in a SavedModel, returns gradients that fail with it when they are computed."""
    if not is_saving():
        raise RuntimeError(refusal)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[refusal])]):
        return [tf.identity(each) for each in gradients]


_RULES: Final[Mapping[str, Rule]] = {
    "allreduce": _of_allreduce,
    "grouped_allreduce": _of_allreduce,
    "allgather": _of_allgather,
    "grouped_allgather": _of_allgather,
    "broadcast": _of_broadcast,
    "grouped_broadcast": _of_broadcast,
    "alltoall": _of_alltoall,
    "reducescatter": _of_reducescatter,
    "grouped_reducescatter": _of_reducescatter,
}
