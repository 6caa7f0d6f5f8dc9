"""Graphs with collectives: which graphs are refused, the names of calls in them, and their order.

A function, branch or loop with collectives starts when the collectives before its call in the program are done, because
one of them may have the same name. What follows the call starts when the function is done.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from types import FrameType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import auto_control_deps, op_def_registry
from tensorflow.python.ops import control_flow_util

from hvdlite.ops import ProcessSet
from hvdlite.tensorflow.operation.calls import Call

SCOPE: Final = "Hvdlite_"
"""The beginning of the name scopes of collectives."""

# TensorFlow's functions that build certain graphs, which the graphs themselves do not show.
_VECTORIZING: Final = ("tensorflow.python.ops.parallel_for.control_flow_ops", "_pfor_impl")
_OF_A_DATASET: Final = ("tensorflow.python.data.ops.structured_function", "__init__")
_STARTS: Final = ("HvdliteStart", "PyFunc")
_SAVING: Final = ("tensorflow.python.saved_model.save", "_trace_gradient_functions")
_LOOP_OVER_A_DATASET: Final = ("tensorflow.python.data.ops.dataset_autograph", "_general_purpose_scan")


def session_graph() -> Any:
    """Returns the graph of TensorFlow 1 that is being built, for a session to run; None if there is none."""
    with tf.init_scope():  # out of all functions that are being built
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def named_in(graph: Any, call: Call) -> Call:
    """Returns ``call`` with a name that no other call of a graph has, the same on all ranks that build the same graph.

    Graphs are numbered when their first calls are built, for each process set, because ranks outside of one may build
    other calls. A user's name gets a number from its second use on.
    """
    if "name" not in call.arguments:
        return call
    of_sets, members = _names.setdefault(graph, {}), call.process_set
    number, counts = of_sets.get(members) or of_sets.setdefault(members, (next(_graph_numbers[members]), Counter()))
    name = call.arguments["name"]
    count = counts[name or call.form]
    counts[name or call.form] += 1
    if name is None:
        name = f"graph{number}.{call.form}.{count}"
    elif count:
        while f"{name}.{count}" in counts:
            count += 1
        name = f"{name}.{count}"
        counts[name] += 1
    return call._replace(arguments={**call.arguments, "name": name})


_graph_numbers: Final[defaultdict[ProcessSet, Iterator[int]]] = defaultdict(itertools.count)
_names: weakref.WeakKeyDictionary[Any, dict[ProcessSet, tuple[int, Counter[str]]]] = weakref.WeakKeyDictionary()


def note_function(text: str, graph: Any) -> None:
    """Records that the call of ``text`` (see `encoded`) is in a function that a ``graph`` for sessions calls."""
    if tf.compat.v1.get_default_graph() is not graph:
        key = text.encode()
        _in_functions[key] = weakref.ref(graph, lambda _: _in_functions.pop(key, None)), -1, 0


def refuse_repeated(text: bytes) -> None:
    """Raises ValueError if a session would run the call of ``text`` in several places of its graph, under one name."""
    if text not in _in_functions:
        return
    reference, version, places = _in_functions[text]
    graph = reference()
    if graph is not None and graph.version != version:
        places = _places_of(text, graph.as_graph_def())
        _in_functions[text] = reference, graph.version, places
    if places > 1:
        raise ValueError(
            f"a graph of TensorFlow 1 calls a tf.function with a collective {places} times, which may run in another "
            "order on each rank; call the Python function, function.python_function(...), in the graph"
        )


def _places_of(text: bytes, graph: Any) -> int:
    functions = {each.signature.name: each.node_def for each in graph.library.function}

    @cache
    def places_in(function: str) -> int:
        return count(functions.get(function, ()))

    def count(nodes: Any) -> int:
        return sum(
            (node.op == "Const" and text in node.attr["value"].tensor.string_val)
            + sum(map(places_in, _functions_of(node)))
            for node in nodes
        )

    return count(graph.node)


_in_functions: Final[dict[bytes, tuple[Any, int, int]]] = {}


def is_saving() -> bool:
    """True while TensorFlow builds all gradients of a SavedModel, needed or not."""
    return _SAVING in _builders()


def refuse_other_graphs(graph: Any) -> None:
    """Raises an error with advice unless TensorFlow runs ``graph`` in the order of the program."""
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise ValueError(
            "a collective cannot be compiled by XLA, because it waits for other processes; pass jit_compile=False to "
            "the tf.function, or to model.compile(), in which it is called"
        )
    builders = list(_builders())
    if _VECTORIZING in builders:
        # TensorFlow would replace the text of a ValueError.
        raise RuntimeError(
            "a collective cannot be vectorized; use tf.map_fn in place of tf.vectorized_map, and pass "
            "experimental_use_pfor=False to tape.jacobian and tape.batch_jacobian"
        )
    loops = builders.count(_LOOP_OVER_A_DATASET)  # the function of such a dataset runs in the program's order
    if builders.count(_OF_A_DATASET) > loops:
        raise ValueError(
            "a collective cannot run inside tf.data, whose functions run in any order and ahead of the program; "
            "call it in the training step, on what the dataset yields"
        )


def _builders() -> Iterator[tuple[Any, str]]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_globals.get("__name__"), frame.f_code.co_name
        frame = frame.f_back


def _look_at(operation: Any, _reads: Any, _writes: Any) -> bool:
    """Adds control dependencies to an operation. TensorFlow calls it for all operations of a function, in order."""
    graph, kind = operation.graph, operation.type
    if SCOPE in operation.name:
        if kind in _STARTS:
            _order_of(graph).put_behind_last(operation)
        elif kind == "QueueDequeueV2":
            _order_of(graph).waits.append(operation.name)
    elif _is_call(kind) and any(map(_has_collective, _functions_of(operation.node_def))):
        # A function that was traced before is not traced again where another graph calls it.
        refuse_other_graphs(graph)
        _order_of(graph).put_behind_all(operation)
    elif kind == "ReduceDataset" and graph in _orders:  # its dataset may have such a function
        _order_of(graph).put_behind_all(operation)
    return False  # it uses no resources that TensorFlow does not know


class _Order:
    """The names of the nodes of a graph after which the next start, or call of a function with collectives, comes.

    TensorFlow itself orders calls of functions only as their variables need.
    """

    def __init__(self) -> None:
        self._last = ""
        self.waits: list[str] = []

    def put_behind_last(self, operation: Any) -> None:
        _put_behind(operation, [self._last] if self._last not in ("", operation.name) else [])
        self._last = operation.name

    def put_behind_all(self, operation: Any) -> None:
        self.put_behind_last(operation)
        _put_behind(operation, self.waits)
        self.waits = []


def _put_behind(operation: Any, names: Sequence[str]) -> None:
    operation._add_control_inputs([operation.graph.get_operation_by_name(name) for name in names])


def _order_of(graph: Any) -> _Order:
    return _orders.setdefault(graph, _Order())


_orders: weakref.WeakKeyDictionary[Any, _Order] = weakref.WeakKeyDictionary()


@cache
def _is_call(kind: str) -> bool:
    """True if operations of this kind call functions that have state."""
    definition = op_def_registry.get(kind)
    is_stateful = definition is not None and definition.is_stateful
    return is_stateful and any(each.type in ("func", "list(func)") for each in definition.attr)


def _functions_of(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        yield from (each.name for each in (value.func, *value.list.func) if each.name)


@lru_cache(maxsize=4096)
def _has_collective(function: str) -> bool:
    """True if a function, or one that it calls, has a collective."""
    names, seen = [function], set()
    while names:
        if (name := names.pop()) in seen:
            continue
        seen.add(name)
        with suppress(tf.errors.NotFoundError):  # a function of a graph of TensorFlow 1, without collectives
            for node in context.get_function_def(name).node_def:
                if SCOPE in node.name:
                    return True
                names += _functions_of(node)
    return False


auto_control_deps.register_acd_resource_resolver(_look_at)
