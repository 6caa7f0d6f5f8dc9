"""The graphs in which no collective can run: one sentence each, said while the graph is built."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

from tensorflow.python.ops import control_flow_util

_VECTORIZING: Final = ("tensorflow.python.ops.parallel_for.control_flow_ops", "_pfor_impl")


def refuse_other_graphs(graph: Any) -> None:
    """Raises an error that says what to do, unless ``graph`` is that of a `tf.function` that TensorFlow itself runs."""
    if not graph.building_function:
        raise RuntimeError(
            "hvdlite has no collectives for sessions and graphs of TensorFlow 1; put them into a tf.function"
        )
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise ValueError(
            "a collective cannot be compiled by XLA, because it waits for other processes; pass jit_compile=False to "
            "the tf.function, or to model.compile(), in which it is called"
        )
    if _is_vectorized():
        # Of a ValueError TensorFlow would make a sentence of its own.
        raise RuntimeError(
            "a collective cannot be vectorized; use tf.map_fn in place of tf.vectorized_map, and pass "
            "experimental_use_pfor=False to tape.jacobian and tape.batch_jacobian"
        )
    if any(name.startswith("Dataset_") for name in _names_of(graph)):
        raise ValueError(
            "a collective cannot run inside tf.data, whose functions run in any order and ahead of the program; "
            "call it in the training step, on what the dataset yields"
        )


def _names_of(graph: Any) -> list[str]:
    names = []
    while graph is not None:
        names.append(getattr(graph, "name", ""))
        graph = getattr(graph, "outer_graph", None)
    return names


def _is_vectorized() -> bool:
    """True while TensorFlow builds the body of a loop that it will vectorize, which leaves no trace in the graph."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _VECTORIZING:
            return True
        frame = frame.f_back
    return False
