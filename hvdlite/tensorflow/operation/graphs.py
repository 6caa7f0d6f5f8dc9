"""The graphs in which no collective can run: one sentence each, said while the graph is built."""

from __future__ import annotations

from typing import Any

from tensorflow.python.ops import control_flow_util


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
