"""The expected result of a collective on each member of a set, in numpy, from the tensors of all members."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

import hvdlite as hvd
from hvdlite.negotiation.rows import even_splits
from hvdlite.tensors.dtypes import from_numpy
from tests.contract import oracle as arithmetic
from tests.multiproc.calls import REDUCTIONS, Array, Call, receiver, splits, tensors

_TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}


def expected(call: Call, member: int, size: int) -> list[Array]:
    """The results of ``member``: one for each tensor, none for a sender; an alltoall with splits also has those."""
    if call.kind == "send" and member == call.root:
        return []
    of_members = [tensors(call, peer, size) for peer in range(size)]
    results = [_one(call, [given[index] for given in of_members], member) for index in range(len(call.parts))]
    if call.kind == "alltoall":
        results.append(np.array([splits(call, peer, size)[member] for peer in range(size)], np.int32))
    return results


def reduction(inputs: Sequence[Array], op: int, prescale: float = 1.0, postscale: float = 1.0) -> Array:
    """``postscale`` times the reduction of ``prescale`` times each input, as `hvdlite.Collectives` documents it."""
    if op == hvd.Adasum:
        return adasum(inputs, prescale, postscale)
    dtype = inputs[0].dtype
    if op == hvd.Average:
        op, postscale = hvd.Average if dtype.kind in "iu" else hvd.Sum, postscale / len(inputs)
    stored = [each.view(np.uint8) if dtype.kind == "b" else each for each in inputs]
    return arithmetic.allreduce(stored, from_numpy(dtype), op, prescale, postscale).view(dtype)


def adasum(inputs: Sequence[Array], prescale: float = 1.0, postscale: float = 1.0) -> Array:
    """Neighbours are combined in pairs, and the results in pairs again; an odd one out waits for the next round."""
    level = [each.astype(np.float64) * prescale for each in inputs]
    while len(level) > 1:
        pairs = [_adapted(a, b) for a, b in zip(level[0::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return (level[0] * postscale).astype(inputs[0].dtype)


def assert_result(actual: Any, wanted: Array, is_rounded: bool) -> None:
    """Same dtype, shape and values; floats that were scaled or combined may differ by some roundings."""
    assert isinstance(actual, np.ndarray), f"{actual!r} is not an array"
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    if actual.tobytes() == wanted.tobytes():
        return  # numpy.testing takes ten times as long to find that out
    if is_rounded and wanted.dtype.kind == "f":
        tolerance = _TOLERANCE[wanted.dtype.name]
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(actual, wanted)


def assert_results(call: Call, actual: Any, wanted: Sequence[Array]) -> None:
    """Holds what the function, or `synchronize`, returned to what `expected` says."""
    results = list(actual) if isinstance(actual, (list, tuple)) else [actual] if actual is not None else []
    if call.kind == "alltoall" and not call.has_splits and len(results) == 1:
        wanted = wanted[:1]  # the function, without splits, returns none
    assert len(results) == len(wanted)
    for one, other in zip(results, wanted, strict=True):
        assert_result(one, other, is_rounded=call.kind in REDUCTIONS)


def _one(call: Call, inputs: Sequence[Array], member: int) -> Array:
    size = len(inputs)
    if call.kind in REDUCTIONS:
        reduced = reduction(inputs, call.op, call.prescale, call.postscale)
        if call.kind.endswith("reducescatter"):
            return _part(reduced, even_splits(len(reduced), size), member)
        return reduced if call.kind != "reduce" or member == call.root else _nothing(reduced)
    if call.kind.endswith("allgather"):
        return np.concatenate(inputs)
    if call.kind == "gather":
        return np.concatenate(inputs) if member == call.root else _nothing(inputs[0])
    if call.kind == "alltoall":
        return np.concatenate([_part(each, splits(call, peer, size), member) for peer, each in enumerate(inputs)])
    if call.kind == "scatter":
        return _part(inputs[call.root], splits(call, call.root, size), member)
    assert call.kind == "broadcast" or member == receiver(call, size)
    return inputs[call.root]


def _part(array: Array, counts: Sequence[int], index: int) -> Array:
    start = sum(counts[:index])
    return array[start : start + counts[index]]


def _nothing(array: Array) -> Array:
    return np.empty((0, *array.shape[1:]), array.dtype)


def _adapted(a: Array, b: Array) -> Array:
    ab, aa, bb = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    return reduce(np.add, [(1 - ab / (2 * square) if square else 1) * each for each, square in ((a, aa), (b, bb))])
