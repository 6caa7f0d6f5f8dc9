"""Makes variables and objects equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvdlite.ops import ProcessSet, global_process_set, objects
from hvdlite.tensorflow.collectives.gradients import cross
from hvdlite.tensorflow.collectives.names import name_of
from hvdlite.tensorflow.operation.errors import raising_both
from hvdlite.tensorflow.operation.graphs import session_graph
from hvdlite.training.explanations import explain


def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Overwrites ``variables`` with those of ``root_rank``, a rank's number in the job. Returns them as a list.

    They travel together, and have the same shapes and dtypes on all ranks. In a graph of TensorFlow 1, returns their
    new values, as tensors for a session to run. Raises ValueError for a variable without a value or of text, and,
    except in such a graph, if there are no variables on any rank.
    """
    listed = list(variables)
    assigned = _assign(listed, root_rank, name, process_set)
    return listed if session_graph() is None else [tf.convert_to_tensor(each) for each in assigned]


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites ``variables``, such as ``model.variables``, with those of ``root_rank``, a rank's number in the job.

    Works inside `tf.function` too. In a graph of TensorFlow 1, returns an operation for a session to run. ``inplace``
    is accepted for Horovod scripts. Raises what `broadcast_` does.
    """
    assigned = _assign(list(variables), root_rank, "broadcast_variables", process_set)
    return None if session_graph() is None else tf.group(*assigned)


def _assign(variables: list[Any], root_rank: int, name: str | None, process_set: ProcessSet) -> list[Any]:
    values = [_value_of(variable) for variable in variables]
    named = name_of("grouped_broadcast", name)
    if named is not None:
        explain(named, variables, "")
    received = cross("grouped_broadcast", values, root_rank=root_rank, name=named, process_set=process_set)
    if not variables and session_graph() is None:  # after the other ranks have learned of it
        raise ValueError("there are no variables: call the model once on a batch, or model.build(shape), before")
    return [variable.assign(value) for variable, value in zip(variables, received, strict=True)]


def broadcast_global_variables(root_rank: int) -> Any:
    """`broadcast_variables` of the present global variables of a graph of TensorFlow 1.

    Raises RuntimeError elsewhere: TensorFlow 2 has no global variables.
    """
    if session_graph() is None:
        raise RuntimeError(
            "there are no global variables in TensorFlow 2; call hvd.broadcast_variables(model.variables, root_rank=0) "
            "and the same with optimizer.variables"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Runs `broadcast_global_variables` in each session of TensorFlow 1 that a `MonitoredSession` makes.

    ``device`` is accepted for Horovod scripts.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Builds the broadcast, in a graph that is not final yet."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Broadcasts after the variables were initialized or loaded from a checkpoint."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of ``root_rank``; see `hvdlite.broadcast_object`. Raises RuntimeError inside `tf.function`.

    Works at once in graphs of TensorFlow 1 too. ``session`` is accepted for Horovod scripts.
    """
    _refuse_in_function()
    with raising_both():
        return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Returns a function that calls `broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks; see `hvdlite.allgather_object`. Raises RuntimeError inside `tf.function`.

    ``session`` is accepted for Horovod scripts.
    """
    _refuse_in_function()
    with raising_both():
        return objects.allgather_object(obj, name, process_set)


def _refuse_in_function() -> None:
    if tf.inside_function():
        raise RuntimeError("Python objects are no tensors of a graph; call this outside of tf.function")


def _value_of(variable: Any) -> Any:
    if getattr(variable, "_value", variable) is None:  # one of Keras
        path = getattr(variable, "path", "")
        raise ValueError(f"variable {path!r} has no value yet; call the model once on a batch, or model.build(shape)")
    tensor = tf.convert_to_tensor(variable)
    if tensor.dtype == tf.string:
        name = getattr(variable, "name", "")
        raise ValueError(f"variable {name!r} has text, which collectives do not take; use hvd.broadcast_object")
    return tensor
