"""Adasum: adds gradients that point the same way like an average, and orthogonal ones like a sum.

The combination of two vectors is ``(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b``; vectors of more ranks are combined in
pairs, and the results in pairs again (Maleki et al., "Scaling distributed training with adaptive summation", 2021).
With an odd number the last one waits for the next round, so any number of ranks will do.

Each tensor is divided among the ranks: an all-to-all gives every rank its part of all vectors, a small all-reduce
in each round completes the scalar products, and an all-gather hands the results out. So every rank sends and receives
as many bytes as in a ring all-reduce, and all end with the same bits. Sums are formed in float32, or in float64 for
float64 tensors and for all scalar products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.rows import even_splits
from hvdlite.planes.arithmetic import BITS, bits_of, values_of
from hvdlite.planes.base import DataPlane
from hvdlite.tensors.buffer import Spans
from hvdlite.tensors.dtypes import DType, Sum

Array = npt.NDArray[Any]


def allreduce(entries: Sequence[Entry], plane: DataPlane) -> None:
    """Combines each tensor over all ranks of the plane. The entries share a floating-point dtype and scale factors."""
    with np.errstate(all="ignore"):  # overflows propagate silently, whatever numpy's error settings are
        _allreduce(entries, plane)


def _allreduce(entries: Sequence[Entry], plane: DataPlane) -> None:
    request = entries[0].request
    dtype = request.dtype
    assert isinstance(dtype, DType)  # ranks have agreed on a float
    parts = [_divided(entry, plane.size) for entry in entries]
    stored = _exchanged(entries, parts, dtype, plane)
    vectors = [[values_of(own[rank], dtype) * request.prescale for own in stored] for rank in range(plane.size)]
    while len(vectors) > 1:
        vectors = _combined(vectors, plane)
    results = [bits_of(vector * request.postscale, dtype) for vector in vectors[0]]
    _hand_out(entries, parts, results, plane)


def _divided(entry: Entry, size: int) -> list[int]:
    """Returns the bytes of each rank's part of one tensor."""
    itemsize = entry.request.dtype.itemsize
    return [count * itemsize for count in even_splits(entry.nbytes // itemsize, size)]


def _exchanged(entries: Sequence[Entry], parts: Sequence[Sequence[int]], dtype: DType, plane: DataPlane) -> list[Array]:
    """Returns this rank's part of all ranks' vectors, shape ``(size, elements)``, for each tensor."""
    stored = [np.empty((plane.size, part[plane.rank] // dtype.itemsize), BITS[dtype]) for part in parts]
    sends = [
        _spans([(entry.source + sum(part[:peer]), 0, part[peer]) for entry, part in zip(entries, parts, strict=True)])
        for peer in range(plane.size)
    ]
    receives = [_spans([(0, own[peer].ctypes.data, own[peer].nbytes) for own in stored]) for peer in range(plane.size)]
    matrix = np.tile(np.sum(parts, axis=0, dtype=np.uint64), (plane.size, 1))
    plane.alltoall(sends, receives, matrix)
    return stored


def _combined(vectors: list[list[Array]], plane: DataPlane) -> list[list[Array]]:
    """Runs one round: combines pairs of ranks' vectors, each a list of tensors."""
    pairs = list(zip(vectors[0::2], vectors[1::2], strict=False))
    products = np.zeros((len(pairs), len(vectors[0]), 3))
    for of_pair, (left, right) in zip(products, pairs, strict=True):
        for of_tensor, a, b in zip(of_pair, left, right, strict=True):
            of_tensor[:] = _dot(a, b), _dot(a, a), _dot(b, b)
    address = products.ctypes.data
    plane.allreduce(_spans([(address, address, products.nbytes)]), DType.FLOAT64, Sum, 1.0, 1.0)
    combined = [
        [_weight(ab, aa) * a + _weight(ab, bb) * b for (ab, aa, bb), a, b in zip(of_pair, left, right, strict=True)]
        for of_pair, (left, right) in zip(products.tolist(), pairs, strict=True)
    ]
    return combined + vectors[2 * len(pairs) :]


def _dot(a: Array, b: Array) -> float:
    return float(np.dot(a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)))


def _weight(product: float, square: float) -> float:
    return 1.0 if square == 0 else 1 - product / (2 * square)


def _hand_out(entries: Sequence[Entry], parts: Sequence[Sequence[int]], results: list[Array], plane: DataPlane) -> None:
    streams = []
    for rank in range(plane.size):
        rows = []
        for entry, part, result in zip(entries, parts, results, strict=True):
            write = entry.target + sum(part[:rank])
            rows.append((result.ctypes.data if rank == plane.rank else 0, write, part[rank]))
        streams.append(_spans(rows))
    plane.allgather(streams)


def _spans(rows: Sequence[tuple[int, int, int]]) -> Spans:
    return np.array(rows, np.uint64).reshape(-1, 3)
