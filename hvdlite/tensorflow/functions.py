"""Variables and objects, made equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import tensorflow as tf

from hvdlite.errors import HvdError
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.ops import objects
from hvdlite.tensorflow.collectives.gradients import cross
from hvdlite.tensorflow.collectives.names import name_of
from hvdlite.tensorflow.errors import in_both
from hvdlite.training.explanations import explain


def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Overwrites ``variables`` with those of ``root_rank``, a rank's number in the job. Returns them.

    They travel together, and have the same shapes and dtypes on all ranks. Raises ValueError for a variable without a
    value, and if there are no variables on any rank.
    """
    listed = list(variables)
    values = [_value_of(variable) for variable in listed]
    named = name_of("grouped_broadcast", name)
    if named is not None:
        explain(named, listed, "")
    received = cross("grouped_broadcast", values, root_rank=root_rank, name=named, process_set=process_set)
    for variable, value in zip(listed, received, strict=True):
        variable.assign(value)
    if not listed:  # not before the others know
        raise ValueError("there are no variables: call the model once on a batch, or model.build(shape), before")
    return listed


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Overwrites ``variables``, such as ``model.variables``, with those of ``root_rank``, a rank's number in the job.

    Inside `tf.function` too. ``inplace`` is accepted for Horovod scripts. Raises what `broadcast_` does.
    """
    broadcast_(variables, root_rank, "broadcast_variables", process_set)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of ``root_rank``; see `hvdlite.broadcast_object`. Not inside `tf.function`."""
    _refuse(session)
    try:
        return objects.broadcast_object(obj, root_rank, name, process_set)
    except HvdError as error:
        raise in_both(error) from error.__cause__


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Returns a function that calls `broadcast_object` with these arguments."""
    _refuse(session)
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in rank order; see `hvdlite.allgather_object`. Not inside `tf.function`."""
    _refuse(session)
    try:
        return objects.allgather_object(obj, name, process_set)
    except HvdError as error:
        raise in_both(error) from error.__cause__


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Of TensorFlow 1, whose global variables there are none of: always raises RuntimeError."""
    raise RuntimeError(
        "there are no global variables in TensorFlow 2; call hvd.broadcast_variables(model.variables, root_rank=0) and "
        "the same with optimizer.variables"
    )


class BroadcastGlobalVariablesHook:
    """Of TensorFlow 1, whose sessions had hooks: always raises RuntimeError."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        broadcast_global_variables(root_rank)


def _refuse(session: Any) -> None:
    if session is not None:
        raise RuntimeError("sessions of TensorFlow 1 are not supported; call it in eager execution, without session=")
    if not tf.executing_eagerly():
        raise RuntimeError("Python objects are no tensors of a graph; call this outside of tf.function")


def _value_of(variable: Any) -> Any:
    if getattr(variable, "_value", variable) is None:  # one of Keras
        path = getattr(variable, "path", "")
        raise ValueError(f"variable {path!r} has no value yet; call the model once on a batch, or model.build(shape)")
    return tf.convert_to_tensor(variable)
