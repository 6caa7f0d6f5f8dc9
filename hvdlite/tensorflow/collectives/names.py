"""The names of calls to which the user gave none."""

from __future__ import annotations

import threading

import tensorflow as tf

from hvdlite.tensorflow.operation.graphs import session_graph


def name_of(form: str, name: str | None) -> str | None:
    """Returns ``name``; None if calls of ``form`` are counted when they run.

    Calls are counted in eager execution and in functions that the main thread traces, so ranks match them in the order
    of the program, in graphs or not. A graph for sessions counts its calls when it is built. Raises ValueError for a
    call without a name in a function that another thread traces: such functions may run concurrently, in an order that
    differs between ranks, and their contents do not distinguish them.
    """
    if name is None and not are_counted():
        raise ValueError(
            f"{form} needs a name here, hvd.{form}(..., name='...'): the function around it is traced outside of the "
            "main thread, so it may run beside other functions, and calls without a name would match theirs"
        )
    return name


def are_counted() -> bool:
    """True if calls without a name are counted here."""
    is_main = threading.current_thread() is threading.main_thread()
    return tf.executing_eagerly() or is_main or session_graph() is not None


def suffixed(name: str | None, suffix: str) -> str | None:
    """Returns the name of a call that belongs to the call ``name``."""
    return None if name is None else name + suffix
