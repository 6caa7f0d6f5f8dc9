"""Collectives without a tensor, and the numbers of this rank when a graph runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import ops
from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.session import known_session, local_rank, local_size, rank
from hvdlite.tensorflow.operation.calls import Call
from hvdlite.tensorflow.operation.errors import raising_both
from hvdlite.tensorflow.operation.running import run


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Returns after every rank has called it; inside `tf.function`, when the graph comes to it.

    In a graph of TensorFlow 1, returns an operation for a session to run.
    """
    if tf.executing_eagerly():
        with raising_both():
            return ops.barrier(process_set)
    return next(iter(run(Call("barrier", {"process_set": process_set}), [])), None)


def join(device: int = -1) -> Any:
    """Declares that this rank has no more data; see `hvdlite.join`. Inside `tf.function` the result is a tensor."""
    if tf.executing_eagerly():
        with raising_both():
            return ops.join(device)
    (last,) = run(Call("join", {}), [])
    return last[0]


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks of a process set when it is evaluated, as an int32 tensor."""
    return _evaluated(lambda: len(_ranks_of(process_set_id)), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this rank is in a process set, else 0, when it is evaluated, as an int32 tensor."""
    return _evaluated(lambda: int(rank() in _ranks_of(process_set_id)), name)


def rank_op(name: str | None = None) -> Any:
    """Returns the number of this rank when it is evaluated, as an int32 tensor."""
    return _evaluated(rank, name)


def local_rank_op(name: str | None = None) -> Any:
    """Returns the number of this rank on its host when it is evaluated, as an int32 tensor."""
    return _evaluated(local_rank, name)


def local_size_op(name: str | None = None) -> Any:
    """Returns the number of ranks on this host when it is evaluated, as an int32 tensor."""
    return _evaluated(local_size, name)


def _ranks_of(process_set_id: int) -> list[int]:
    ranks = known_session().sets.ranks_by_number()
    if process_set_id not in ranks:
        raise ValueError(f"there is no process set {process_set_id}; there are {sorted(ranks)}")
    return ranks[process_set_id]


def _evaluated(number: Callable[[], int], name: str | None) -> Any:
    if tf.executing_eagerly():
        with raising_both():
            return tf.constant(number(), tf.int32)
    result = tf.numpy_function(lambda: np.int32(number()), [], tf.int32, name=name)
    result.set_shape([])
    return result
