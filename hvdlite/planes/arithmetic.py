"""Reductions in numpy, with the same bits as those of the native library.

Memory is an array of bits: float16 as numpy has it, bfloat16 as uint16, bool as uint8 of 0 and 1. *Values* are what is
folded: 16-bit floats widened to float32, integers of an average to twice their bits and at least 32, everything else as
it is. A sum of 64-bit integers is two numbers: the sum of their upper halves, and the sum of their lower halves, which
are not negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hvdlite.tensors.dtypes import Average, DType, Max, Min, Product, Sum

Array = npt.NDArray[Any]

BITS: Final = {dtype: np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(str(dtype), str(dtype))) for dtype in DType}
_FOLDS: Final = {Average: np.add, Sum: np.add, Min: np.minimum, Max: np.maximum, Product: np.multiply}
_HALF: Final = 32
_LOWER: Final = 2**_HALF - 1
_FOLDS_OF_BOOL: Final = {Sum: np.maximum, Min: np.minimum, Max: np.maximum, Product: np.minimum}


def folding(dtype: DType, op: int) -> Callable[[Array, Array], Array]:
    """Returns ``op`` as a function of two arrays of values."""
    return (_FOLDS_OF_BOOL if dtype is DType.BOOL else _FOLDS)[op]


def opened(bits: Array, dtype: DType, op: int, prescale: float) -> Array:
    """Returns ``bits`` as values to fold, scaled."""
    values = scaled(values_of(bits, dtype), dtype, prescale)
    if op != Average:
        return values
    if values.itemsize < 8:
        return values.astype(np.int32 if values.itemsize < 4 else np.int64)
    return np.stack((values >> _HALF, values & _LOWER), axis=1).ravel()


def closed(values: Array, dtype: DType, op: int, postscale: float) -> Array:
    """Returns folded ``values`` as bits, scaled and rounded."""
    if op != Average:
        return bits_of(scaled(values, dtype, postscale), dtype)
    divisor = _divisor(postscale)
    if dtype is not DType.INT64:
        sums = values.astype(np.float64)  # exact, and no quotient is rounded to the next whole number
        return _truncated(sums / divisor if divisor else sums * postscale, BITS[dtype])
    high, low = values[0::2], values[1::2]
    if divisor:
        return _quotients(high + (low >> _HALF), low & _LOWER, divisor)
    return _truncated((high * 2.0**_HALF + low) * postscale, BITS[dtype])


def values_of(bits: Array, dtype: DType) -> Array:
    """Converts ``bits`` to values. A bfloat16 is the upper half of a float32."""
    if dtype is DType.FLOAT16:
        return bits.astype(np.float32)
    if dtype is DType.BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits


def bits_of(values: Array, dtype: DType) -> Array:
    """Rounds ``values`` to ``dtype``, to nearest even; a NaN becomes a quiet one."""
    if dtype is DType.FLOAT16:
        return values.astype(np.float16)
    if dtype is DType.BFLOAT16:
        whole = values.view(np.uint32)
        rounded = (whole + (0x7FFF + (whole >> 16 & 1))) >> 16
        return np.where(np.isnan(values), whole >> 16 | 0x40, rounded).astype(np.uint16)
    return values


def scaled(values: Array, dtype: DType, factor: float) -> Array:
    """Multiplies ``values`` by ``factor``. Integers are scaled in double, truncated toward zero, and saturate."""
    if factor == 1.0 or dtype is DType.BOOL:
        return values
    if dtype.is_floating:
        return np.multiply(values, factor, dtype=values.dtype)
    return _truncated(values.astype(np.float64) * factor, values.dtype)


def _truncated(values: Array, dtype: np.dtype[Any]) -> Array:
    """Truncates floats to integers, which saturate; a NaN becomes 0."""
    limits = np.iinfo(dtype)
    is_low, is_high = values <= float(limits.min), values >= float(limits.max) + 1
    within = np.where(is_low | is_high | np.isnan(values), 0, values).astype(dtype)
    return np.where(is_low, limits.min, np.where(is_high, limits.max, within)).astype(dtype)


def _divisor(scale: float) -> int:
    """Returns the whole number of which ``scale`` is the inverse, as nearly as a double can be; 0 if there is none."""
    if not 2.0**-31 < scale <= 1:
        return 0
    whole = round(1 / scale)
    return whole if 1 / whole == scale else 0


def _quotients(high: Array, low: Array, divisor: int) -> Array:
    """Divides the numbers ``high * 2**32 + low`` and truncates; the lower digits are in 0 ... 2**32 - 1.

    A long division, rounded down at first, so that remainders are not negative.
    """
    upper, rest = np.divmod(high, divisor)
    lower, rest = np.divmod(rest << _HALF | low, divisor)
    lower += (upper < 0) & (rest != 0)
    whole = (upper << _HALF) + lower
    limits = np.iinfo(np.int64)
    return np.where(upper < -(2**31), limits.min, np.where(upper >= 2**31, limits.max, whole))
