"""All-reduce and reduce-scatter."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdlite.ops import OP_NAMES, Average, Compressor, ProcessSet, Sum, global_process_set, group_of
from hvdlite.tensorflow.collectives.gradients import cross
from hvdlite.tensorflow.collectives.names import name_of, suffixed
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.operation.autograph import converted


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces ``tensor`` over all ranks; by default to the average.

    The result is ``postscale_factor`` times the reduction of ``prescale_factor`` times each tensor. With
    ``compression`` the tensor travels in a smaller form. The rows of `tf.IndexedSlices` are gathered from all ranks.
    ``average`` is Horovod's deprecated form of ``op``; devices and name scopes are accepted for its scripts.
    """
    how: dict[str, Any] = dict(op=_op_of(average, op))
    how |= dict(prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return _gathered(tensor, name, process_set, how)
    sent, context = converted(compression.compress)(tf.convert_to_tensor(tensor))
    (reduced,) = cross("allreduce", [sent], name=name_of("allreduce", name), process_set=process_set, **how)
    return converted(compression.decompress)(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """`allreduce` of several tensors, of any dtypes, that become ready on every rank together."""
    how = dict(op=_op_of(average, op), prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    results: list[Any] = list(tensors)
    dense = [index for index, tensor in enumerate(results) if not isinstance(tensor, tf.IndexedSlices)]
    if len(dense) < len(results):
        _refuse_other_than_sums(how)
    sent = [results[index] for index in dense]  # perhaps none, while another rank has some
    reduced = _of_several("grouped_allreduce", sent, compression, name, process_set, how)
    for index, tensor in zip(dense, reduced, strict=True):
        results[index] = tensor
    for index in sorted(set(range(len(results))) - set(dense)):
        results[index] = _gathered(results[index], suffixed(name, f".slices[{index}]"), process_set, how)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Returns this rank's rows of the reduction of ``tensor`` over all ranks.

    Rows, along the first dimension, are divided evenly; if they cannot be, the first ranks get one more.
    """
    how: dict[str, Any] = dict(op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    sent, context = converted(compression.compress)(tf.convert_to_tensor(tensor))
    (reduced,) = cross("reducescatter", [sent], name=name_of("reducescatter", name), process_set=process_set, **how)
    return converted(compression.decompress)(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """`reducescatter` of several tensors, of any dtypes, that become ready on every rank together."""
    how = dict(op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    return _of_several("grouped_reducescatter", tensors, compression, name, process_set, how)


def _of_several(
    form: str, tensors: Sequence[Any], compression: Compressor, name: str | None, process_set: ProcessSet, how: Any
) -> list[Any]:
    pairs = [converted(compression.compress)(tf.convert_to_tensor(tensor)) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    reduced = cross(form, sent, name=name_of(form, name), process_set=process_set, **how)
    return [converted(compression.decompress)(each, context) for each, (_, context) in zip(reduced, pairs, strict=True)]


def _gathered(slices: Any, name: str | None, process_set: ProcessSet, how: Any) -> Any:
    """Gathers the rows of all ranks. Rows with the same index add up where the result is used."""
    _refuse_other_than_sums(how)
    values = tf.convert_to_tensor(slices.values)
    if how["op"] == Average:
        values /= tf.cast(group_of(process_set).size, values.dtype)
    found = cross(
        "grouped_allgather",
        [values, tf.convert_to_tensor(slices.indices)],
        name=name_of("grouped_allgather", name),
        process_set=process_set,
    )
    return tf.IndexedSlices(found[0], found[1], dense_shape=slices.dense_shape)


def _refuse_other_than_sums(how: Any) -> None:
    """Raises NotImplementedError if gathered rows of `tf.IndexedSlices` would not be the reduction."""
    op = how["op"]
    if op not in (Average, Sum) or how["prescale_factor"] != 1.0 or how["postscale_factor"] != 1.0:
        raise NotImplementedError(
            f"op {OP_NAMES.get(op, op)} of tf.IndexedSlices, or its scaling, is not supported; use hvd.Average or "
            "hvd.Sum without factors, or pass tf.convert_to_tensor(slices), sparse_as_dense=True"
        )


def _op_of(average: bool | None, op: int | None) -> int:
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("pass either op or average, not both; op is the one to keep")
    warnings.warn("average=... is deprecated; pass op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
    return Average if average else Sum
