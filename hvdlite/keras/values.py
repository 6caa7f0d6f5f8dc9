"""Collectives of values outside of a model's step: numbers, arrays, tensors and variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from hvdlite.ops import Average, ProcessSet, global_process_set
from hvdlite.ops.arrays import collectives as arrays
from hvdlite.ops.numbers import is_number
from hvdlite.training.explanations import explain, explaining

_GROUP = "broadcast_variables"


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a number, array or tensor over all ranks, by default to the average. Returns a number or numpy array.

    ``compression`` is accepted for Horovod scripts. ``average`` is Horovod's deprecated form of ``op``.
    """
    how = op, prescale_factor, postscale_factor
    return arrays.allreduce(_value_of(value), average, name, None, *how, process_set)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the rows of all ranks, in rank order, as a numpy array."""
    return arrays.allgather(_value_of(value), name, process_set)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the value of ``root_rank``, a number or numpy array."""
    return arrays.broadcast(_value_of(value), root_rank, name, process_set)


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns this rank's rows of the reduction, as a numpy array."""
    return arrays.reducescatter(_value_of(value), name, None, op, process_set)


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites variables of Keras with those of ``root_rank``: ``model.weights``, ``optimizer.variables``.

    They are in the same order on all ranks, and travel together. Raises ValueError if there are none on any rank.
    """
    listed = list(variables)
    explain(_GROUP, listed, "")
    with explaining():
        received = arrays.grouped_broadcast([_read(each) for each in listed], root_rank, _GROUP, process_set)
    for variable, value in zip(listed, received, strict=True):
        variable.assign(keras.ops.cast(value, variable.dtype))
    if not listed:  # after the other ranks have learned of it
        raise ValueError("there are no variables: call the model once on a batch, or model.build(shape), before")


def broadcast_global_variables(root_rank: int) -> None:
    """Raises RuntimeError: Keras 3 has no global variables."""
    raise RuntimeError(
        "Keras 3 has no global variables; pass hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit(), or "
        "call hvd.broadcast_variables(model.weights, root_rank)"
    )


def _value_of(value: Any) -> Any:
    return value if is_number(value) else np.asarray(keras.ops.convert_to_numpy(value))


def _read(variable: Any) -> Any:
    """Returns the value of ``variable`` as an array; integers with 64 bits, because back ends differ."""
    value = np.array(keras.ops.convert_to_numpy(variable.value))
    return value.astype(np.int64) if value.dtype.kind == "i" else value
