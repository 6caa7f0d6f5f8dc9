"""All-gather, broadcast and all-to-all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.tensorflow.collectives.gradients import cross
from hvdlite.tensorflow.collectives.names import name_of


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensors of all ranks concatenated along the first dimension, in rank order.

    All dimensions but the first are the same on all ranks; the first may differ and be 0.
    """
    sent = tf.convert_to_tensor(tensor)
    gathered, _ = cross("allgather", [sent], name=name_of("allgather", name), process_set=process_set)
    return gathered


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of several tensors that become ready on every rank together."""
    sent = [tf.convert_to_tensor(tensor) for tensor in tensors]
    found = cross("grouped_allgather", sent, name=name_of("grouped_allgather", name), process_set=process_set)
    return found[: len(sent)]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensor of ``root_rank``. Shape and dtype are the same on all ranks.

    ``root_rank`` is a rank's number in the job, also in a process set.
    """
    sent = tf.convert_to_tensor(tensor)
    named = name_of("broadcast", name)
    (received,) = cross("broadcast", [sent], root_rank=root_rank, name=named, process_set=process_set)
    return received


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of ``tensor`` to each rank, and returns what all ranks sent here, joined in rank order.

    ``splits`` are the rows for each rank, in order from the first row on; remaining rows are not sent. Without
    splits, rows are divided evenly. With splits, returns the tensor and the number of rows from each rank, int32.
    """
    sent = [tf.convert_to_tensor(tensor)]
    if splits is not None:
        sent.append(tf.cast(tf.convert_to_tensor(splits), tf.int32))
    received, rows = cross("alltoall", sent, name=name_of("alltoall", name), process_set=process_set)
    return received if splits is None else (received, rows)
