"""The names of calls to which the user gave none."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf


def name_of(form: str, name: str | None) -> str | None:
    """Returns ``name``, or a name from the graph that is being built; None if calls are counted when they run.

    They are counted, as everywhere in hvdlite, in eager execution and in functions that the main thread traces: so they
    meet in the order of the program, whether ranks run it in graphs or not. What other threads trace may run beside
    other functions, in an order that differs between ranks, and is named by its place in the program.
    """
    if name is not None or tf.executing_eagerly() or threading.current_thread() is threading.main_thread():
        return name
    graph = tf.compat.v1.get_default_graph()
    return "/".join([form, *reversed(_functions(graph)), graph.unique_name(form, mark_as_used=False)])


def suffixed(name: str | None, suffix: str) -> str | None:
    """Returns the name of a call that belongs to the one called ``name``."""
    return None if name is None else name + suffix


def _functions(graph: Any) -> list[str]:
    """The names of the functions in which ``graph`` is built, from the inside."""
    names = []
    while getattr(graph, "building_function", False):
        names.append(graph.name)
        graph = graph.outer_graph
    return names
