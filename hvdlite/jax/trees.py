"""Collectives of pytrees, whose leaves travel together. The result has the tree's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hvdlite.errors import HorovodInternalError
from hvdlite.jax.eager import finished
from hvdlite.jax.primitive import Leaves, cross
from hvdlite.ops import (
    OP_NAMES,
    Average,
    Collectives,
    Compressor,
    GroupHandle,
    ProcessSet,
    Sum,
    global_process_set,
    group_of,
)
from hvdlite.ops.arrays import collectives as arrays
from hvdlite.ops.handles import run
from hvdlite.ops.numbers import is_number
from hvdlite.session import rank


def allreduce(
    tree: Any,
    name: str | None = None,
    compression: Compressor | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces each leaf of ``tree`` over all ranks, all of them in one call; by default to the average.

    Works outside and inside of `jax.jit` and control flow, and has derivatives for op Average and Sum. The result is
    ``postscale_factor`` times the reduction of ``prescale_factor`` times each leaf. With ``compression`` leaves travel
    in a smaller form. Raises HorovodInternalError if the collective did not happen; inside of `jax.jit`, JAX raises an
    error with the same text, and `last_error` returns the object.
    """
    leaves, form = jax.tree.flatten(tree)
    contexts: list[Any] = [None] * len(leaves)
    if compression is not None:
        pairs = [(leaf, None) if is_number(leaf) else compression.compress(leaf) for leaf in leaves]
        leaves, contexts = [sent for sent, _ in pairs], [context for _, context in pairs]
    results = cross(_AllReduce(name, process_set, (op, prescale_factor, postscale_factor)), leaves)
    if compression is not None:
        results = [
            result if context is None else compression.decompress(result, context)
            for result, context in zip(results, contexts, strict=True)
        ]
    return jax.tree.unflatten(form, results)


def broadcast(tree: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the tree of ``root_rank``, a rank's number in the job. Form, shapes and dtypes are the same on all ranks.

    Works inside of `jax.jit`, as `allreduce` does.
    """
    leaves, form = jax.tree.flatten(tree)
    return jax.tree.unflatten(form, cross(_Broadcast(name, process_set, root_rank), leaves))


def allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns each leaf of all ranks concatenated along the first dimension, in rank order.

    Works inside of `jax.jit`, as `allreduce` does; there, shapes are the same on all ranks.
    """
    leaves, form = jax.tree.flatten(tree)
    return jax.tree.unflatten(form, cross(_AllGather(name, process_set), leaves))


def broadcast_parameters(tree: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the ``tree`` of ``root_rank``, a rank's number in the job: parameters, or the state of an optimizer.

    Each leaf travels under the name of its path. Numbers are returned as numbers. Raises ValueError for a leaf that is
    neither an array nor a number, and HorovodInternalError if the trees of ranks differ in form, shapes or dtypes.
    """
    leaves, form = jax.tree_util.tree_flatten_with_path(tree)
    named = [(f"parameter{jax.tree_util.keystr(path)}", np.array(leaf)) for path, leaf in leaves]
    received = arrays.broadcast_all_(group_of(process_set), named, root_rank)
    results = [
        finished(array) if hasattr(leaf, "shape") else array.item()
        for (_, leaf), array in zip(leaves, received, strict=True)
    ]
    return jax.tree_util.tree_unflatten(form, results)


@dataclass(frozen=True)
class _AllReduce:
    name: str | None
    process_set: ProcessSet
    how: tuple[int, float, float] = (Average, 1.0, 1.0)

    def run(self, collectives: Collectives[Any], leaves: Leaves, has_shapes: bool) -> Leaves:
        return collectives.grouped_allreduce(leaves, None, self.name, None, *self.how, self.process_set)

    def results(self, leaves: Leaves) -> Sequence[Any]:
        return [_like(leaf) for leaf in leaves]

    def gradients(self, leaves: Leaves) -> Leaves:
        """Reduces them in the same way."""
        op, _, _ = self.how
        if op not in (Average, Sum):
            raise ValueError(
                f"there is no gradient through op {OP_NAMES.get(op, op)}; "
                "use hvd.Sum or hvd.Average, or jax.lax.stop_gradient"
            )
        return cross(replace(self, name=_backward(self.name)), leaves)


@dataclass(frozen=True)
class _Broadcast:
    name: str | None
    process_set: ProcessSet
    root_rank: int

    def run(self, collectives: Collectives[Any], leaves: Leaves, has_shapes: bool) -> Leaves:
        return collectives.grouped_broadcast(leaves, self.root_rank, self.name, self.process_set)

    def results(self, leaves: Leaves) -> Sequence[Any]:
        return [_like(leaf) for leaf in leaves]

    def gradients(self, leaves: Leaves) -> Leaves:
        """Averages over ranks on the root; zeros elsewhere."""
        averages = cross(_AllReduce(_backward(self.name), self.process_set), leaves)
        return averages if rank() == self.root_rank else [jax.numpy.zeros_like(average) for average in averages]


@dataclass(frozen=True)
class _AllGather:
    name: str | None
    process_set: ProcessSet

    def run(self, collectives: Collectives[Any], leaves: Leaves, has_shapes: bool) -> Leaves:
        handle = collectives.draft("grouped_allgather", group_of(self.process_set), leaves, name=self.name)
        assert isinstance(handle, GroupHandle)
        results = run(handle)
        uneven = [each.rows for each in handle.handles if len(set(each.rows)) > 1]
        if uneven and has_shapes:
            raise HorovodInternalError(
                f"inside of jax.jit, allgather takes arrays with equally many rows, but the ranks have {uneven[0]}; "
                "fill up to the longest, or call it outside of jax.jit"
            )
        return results

    def results(self, leaves: Leaves) -> Sequence[Any]:
        size = group_of(self.process_set).size
        if any(not leaf.shape for leaf in leaves):
            raise ValueError("allgather needs arrays with at least one dimension; reshape a scalar to (1,)")
        return [jax.ShapeDtypeStruct((size * leaf.shape[0], *leaf.shape[1:]), leaf.dtype) for leaf in leaves]

    def gradients(self, leaves: Leaves) -> Leaves:
        """Averages over ranks; each rank takes the rows that it contributed."""
        averages = cross(_AllReduce(_backward(self.name), self.process_set), leaves)
        group = group_of(self.process_set)
        rows = [average.shape[0] // group.size for average in averages]
        return [average[group.rank * own : (group.rank + 1) * own] for average, own in zip(averages, rows, strict=True)]


def _like(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _backward(name: str | None) -> str | None:
    return None if name is None else f"{name}.backward"
