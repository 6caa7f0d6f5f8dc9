"""The graphs in which no collective can run: one sentence each, said while the graph is built."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from tensorflow.python.framework import auto_control_deps
from tensorflow.python.ops import control_flow_util

from hvdlite.tensorflow.operation.tickets import QUEUES

# The functions of TensorFlow that have such graphs built, which leaves no trace in the graphs.
_VECTORIZING: Final = ("tensorflow.python.ops.parallel_for.control_flow_ops", "_pfor_impl")
_OF_A_DATASET: Final = ("tensorflow.python.data.ops.structured_function", "__init__")
_LOOP_OVER_A_DATASET: Final = ("tensorflow.python.data.ops.dataset_autograph", "_general_purpose_scan")


def refuse_other_graphs(graph: Any) -> None:
    """Raises an error that says what to do, unless ``graph`` is that of a `tf.function` that TensorFlow itself runs."""
    refusal = _refusal(graph)
    if refusal is not None:
        raise refusal


def _refusal(graph: Any) -> Exception | None:
    if not graph.building_function:
        return RuntimeError(
            "hvdlite has no collectives for sessions and graphs of TensorFlow 1; put them into a tf.function"
        )
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        return ValueError(
            "a collective cannot be compiled by XLA, because it waits for other processes; pass jit_compile=False to "
            "the tf.function, or to model.compile(), in which it is called"
        )
    builders = list(_builders())
    if _VECTORIZING in builders:
        # Of a ValueError TensorFlow would make a sentence of its own.
        return RuntimeError(
            "a collective cannot be vectorized; use tf.map_fn in place of tf.vectorized_map, and pass "
            "experimental_use_pfor=False to tape.jacobian and tape.batch_jacobian"
        )
    loops = builders.count(_LOOP_OVER_A_DATASET)  # each builds a dataset whose function runs in the program's order
    if builders.count(_OF_A_DATASET) > loops:
        return ValueError(
            "a collective cannot run inside tf.data, whose functions run in any order and ahead of the program; "
            "call it in the training step, on what the dataset yields"
        )
    return None


def _builders() -> Iterator[tuple[Any, str]]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_globals.get("__name__"), frame.f_code.co_name
        frame = frame.f_back


def _refuse_call_of_collective(operation: Any, _reads: Any, _writes: Any) -> bool:
    """Looks at each operation of a function that TensorFlow has built, when it adds control dependencies.

    A function that was traced before is not traced again where another graph calls it.
    """
    if operation.type == "StatefulPartitionedCall":
        refusal = _refusal(operation.graph)
        if refusal is not None and _calls_collective(operation.graph):
            raise refusal
    return False  # it touches no other resources than TensorFlow knows


def _calls_collective(graph: Any) -> bool:
    return any(
        node.op == "FIFOQueueV2" and node.attr["shared_name"].s.startswith(QUEUES.encode())
        for function in graph.as_graph_def().library.function
        for node in function.node_def
    )


auto_control_deps.register_acd_resource_resolver(_refuse_call_of_collective)
