"""Runs a call: at once in eager execution, or as nodes of the graph that is being built."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.errors import HvdError
from hvdlite.ops import ProcessSet
from hvdlite.ops.handles import run as run_handle
from hvdlite.tensorflow.operation.binding import DTYPES
from hvdlite.tensorflow.operation.calls import ARRAYS, Call, encoded
from hvdlite.tensorflow.operation.errors import in_both, remember
from hvdlite.tensorflow.operation.graphs import SCOPE, named_in, note_function, refuse_other_graphs, session_graph
from hvdlite.tensorflow.operation.numpy_functions import session_nodes
from hvdlite.tensorflow.operation.pending import NEWS, give_up_ended
from hvdlite.tensorflow.operation.route import route


def run(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """Returns the results of ``call`` for ``tensors`` (see `Call`)."""
    if tf.executing_eagerly():
        try:
            return _run_at_once(call, tensors)
        except (HvdError, ValueError) as error:  # not `raising_both`, which costs more where nothing fails
            raise in_both(error) from error.__cause__
    try:
        return _add_nodes(call, tensors)
    except HvdError as error:
        found = in_both(error)
        remember(found)
        raise found from error.__cause__


def _run_at_once(call: Call, tensors: Sequence[Any]) -> list[Any]:
    _refuse_other_dtypes(tensors)
    give_up_ended()  # a ticket may have this name
    handle = call.draft(ARRAYS, [np.asarray(tensor.numpy()) for tensor in tensors])
    found = call.results(ARRAYS, handle, run_handle(handle))
    dtypes = _dtypes_of(call, tensors)
    return [tf.convert_to_tensor(array, dtype) for array, dtype in zip(found, dtypes, strict=True)]


def _refuse_other_dtypes(tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        if tensor.dtype.as_datatype_enum not in DTYPES:
            raise ValueError(f"dtype {tensor.dtype.name} is not supported; hvd.broadcast_object takes any object")


def _add_nodes(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """Adds the nodes of the collective, and returns their results."""
    _refuse_other_dtypes(tensors)
    graph = tf.compat.v1.get_default_graph()
    refuse_other_graphs(graph)
    outer, dtypes = session_graph(), _dtypes_of(call, tensors)
    results = _in_function(call, tensors, dtypes, graph) if outer is None else _in_session(call, tensors, dtypes, outer)
    if not dtypes:  # a node without outputs
        return [results] if outer is not None and call.is_meeting else []
    for result, shape in zip(results, _shapes_of(call, tensors), strict=True):
        result.set_shape(shape)
    return list(results)


def _in_function(call: Call, tensors: Sequence[Any], dtypes: Sequence[Any], graph: Any) -> Any:
    """Adds three nodes. The first starts the collective, in the order of the program.

    Only what needs the results waits for the other two: TensorFlow keeps operations with state in order unless they
    have a resource, here the queue. What follows a meeting in the program waits for it, so a meeting has no resource.
    """
    nodes = route()
    name, waits = call.arguments.get("name"), _waits.setdefault(graph, {})
    before = waits.get((name, call.process_set))
    with tf.name_scope(f"{SCOPE}{call.form}"):
        with tf.control_dependencies([graph.get_operation_by_name(before)] if before else []):
            ticket, serialized = nodes.start(encoded(call), tensors)
        queue = tf.raw_ops.ParseTensor(serialized=serialized, out_type=tf.resource)
        (news,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=NEWS)
        results = nodes.finish(ticket, news, [] if call.is_meeting else [queue], dtypes)
    if name is not None:
        waits[name, call.process_set] = news.op.name
    return results


def _in_session(call: Call, tensors: Sequence[Any], dtypes: Sequence[Any], graph: Any) -> Any:
    """Adds three nodes, which a session runs in no order with other nodes. So the call has a name of its own."""
    text = encoded(named_in(graph, call))
    note_function(text, graph)
    with tf.name_scope(f"{SCOPE}{call.form}"):
        return session_nodes(text, tensors, dtypes)


def _dtypes_of(call: Call, tensors: Sequence[Any]) -> list[Any]:
    if call.form == "alltoall":
        return [tensors[0].dtype, tf.int32]
    if call.form == "join":
        return [tf.int32]
    dtypes = [tensor.dtype for tensor in tensors]
    return dtypes + [tf.int32] * len(dtypes) if call.gathers else dtypes


def _shapes_of(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """The shapes of the results, as far as they are known before the call runs."""
    if call.form == "alltoall":
        return [_any_rows(tensors[0].shape), [None]]
    if call.form == "join":
        return [[1]]
    if call.gathers:
        return [*(_any_rows(tensor.shape) for tensor in tensors), *([None] for _ in tensors)]
    if call.form in ("reducescatter", "grouped_reducescatter"):
        return [_any_rows(tensor.shape) for tensor in tensors]
    return [tensor.shape for tensor in tensors]


def _any_rows(shape: Any) -> Any:
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])


_waits: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ProcessSet], str]] = weakref.WeakKeyDictionary()
"""The node of each graph that waits for the last collective of a name. The next one of that name starts after it."""
