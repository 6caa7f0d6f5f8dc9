"""The arithmetic that `hvdlite.planes.base` documents, in numpy, as plainly as possible.

Arrays hold the bits that move: float16 as numpy has it, bfloat16 as uint16, bool as uint8 of 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hvdlite.tensors.dtypes import Average, DType, Max, Min, Product, Sum

Array = npt.NDArray[Any]

STORAGE: Final[dict[DType, type[np.generic]]] = {
    DType.UINT8: np.uint8,
    DType.INT8: np.int8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.BOOL: np.uint8,
}
OPS: Final = (Sum, Min, Max, Product)
INTEGERS: Final = tuple(dtype for dtype in DType if dtype.is_integer)

_FOLD: Final[dict[int, Callable[[Array, Array], Array]]] = {
    Average: np.add,
    Sum: np.add,
    Min: np.minimum,
    Max: np.maximum,
    Product: np.multiply,
}
_FOLD_BOOL: Final = {Sum: np.maximum, Max: np.maximum, Min: np.minimum, Product: np.minimum}


def widen(array: Array, dtype: DType) -> Array:
    """The values as accumulators hold them."""
    if dtype is DType.FLOAT16:
        return array.astype(np.float32)
    if dtype is DType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def narrow(values: Array, dtype: DType) -> Array:
    """Accumulators rounded to nearest even; NaN becomes a quiet NaN."""
    if dtype is DType.FLOAT16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if dtype is DType.BFLOAT16:
        bits = values.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)
    return values


def scale(values: Array, dtype: DType, factor: float) -> Array:
    if factor == 1.0 or dtype is DType.BOOL:
        return values
    if dtype.is_floating:
        return values * values.dtype.type(factor)
    limits = np.iinfo(values.dtype)
    product = np.trunc(values.astype(np.float64) * factor)
    fits = (product > float(limits.min)) & (product < float(limits.max) + 1)
    scaled = np.where(product <= float(limits.min), limits.min, limits.max).astype(values.dtype)
    scaled[fits] = product[fits].astype(values.dtype)
    return scaled


def averages(sums: Array, dtype: DType, factor: float) -> Array:
    """Scales sums that are Python's integers, as only these cannot wrap around. ``1 / n`` divides by n."""
    limits = np.iinfo(STORAGE[dtype])
    divisor = round(min(1 / factor, 1e9)) if factor > 0 else 0

    def scaled(total: int) -> int:
        if divisor and 1 / divisor == factor:
            average = abs(total) // divisor * (1 if total >= 0 else -1)
        else:
            average = math.trunc(min(max(total * factor, -1e30), 1e30))
        return min(max(average, int(limits.min)), int(limits.max))

    totals = np.asarray(sums, object)
    return np.array([scaled(total) for total in totals.flat], STORAGE[dtype]).reshape(totals.shape)


def half_a_unit(values: Array, dtype: DType) -> Array | float:
    """Returns the error that rounding to a 16-bit ``dtype`` may cause; zero for accumulators that are the result."""
    if dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return 0.0
    digits, lowest = (11, -24) if dtype is DType.FLOAT16 else (8, -133)
    return np.exp2(np.maximum(np.frexp(values)[1] - digits, lowest).astype(float)) / 2


Inputs = Sequence[Array | Sequence[Array]]
"""One array per rank in the order in which they are folded; those of a list are folded before the others."""


def allreduce(inputs: Inputs, dtype: DType, op: int, prescale: float = 1.0, postscale: float = 1.0) -> Array:
    """Returns the result of ``inputs`` on every rank."""
    fold = _FOLD_BOOL[op] if dtype is DType.BOOL else _FOLD[op]

    def folded(inputs: Array | Inputs) -> Array:
        if isinstance(inputs, np.ndarray):
            values = scale(widen(inputs, dtype), dtype, prescale)
            return values.astype(object) if op == Average else values
        return reduce(fold, map(folded, inputs))

    if op == Average:
        return averages(folded(inputs), dtype, postscale)
    with np.errstate(over="ignore", invalid="ignore"):
        return narrow(scale(folded(inputs), dtype, postscale), dtype)


def extremes(dtype: DType, rank: int, size: int) -> Array:
    """What ranks together hold the largest and smallest sums of, one element for each pair of values, and some more."""
    limits = np.iinfo(STORAGE[dtype])
    values = [limits.max, limits.min, limits.max - 1, limits.min + 1, limits.max // 2 + 1, 1, 0, size - 1]
    mine = [value if rank % 2 == 0 else other for value in values for other in values]
    alone = [value if rank == 0 else 0 for value in values]
    return np.array([*mine, *alone], STORAGE[dtype])


def random(rng: np.random.Generator, dtype: DType, count: int) -> Array:
    """Values of every sign and magnitude that the dtype is used for."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count, dtype=np.uint8)
    if dtype.is_floating:
        values = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 2, count)).astype(np.float32)
        return narrow(values, dtype).astype(STORAGE[dtype], copy=False)
    limits = np.iinfo(STORAGE[dtype])
    return rng.integers(limits.min, limits.max, count, dtype=STORAGE[dtype], endpoint=True)


def assert_one_of(actual: Array, expected: Sequence[Array], dtype: DType, what: str) -> None:
    """Each element equals the same element of one of ``expected`` (NaN equals NaN, -0 equals 0)."""
    values = widen(actual, dtype)
    matches = [
        (values == other) | ((values != values) & (other != other)) for other in (widen(e, dtype) for e in expected)
    ]
    wrong = np.flatnonzero(~np.any(matches, axis=0))
    if wrong.size:
        first = wrong[0]
        allowed = [widen(e, dtype)[first] for e in expected]
        raise AssertionError(
            f"{what}: {wrong.size} wrong, the first at {first}: {values[first]} is not one of {allowed}"
        )
