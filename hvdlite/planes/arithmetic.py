"""Reductions in numpy, to the bit those of the native library.

Memory is an array of bits: float16 as numpy has it, bfloat16 as uint16, bool as uint8 of 0 and 1. *Values* are what is
folded: 16-bit floats widened to float32, everything else as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hvdlite.tensors.dtypes import DType, Max, Min, Product, Sum

Array = npt.NDArray[Any]

BITS: Final = {dtype: np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(str(dtype), str(dtype))) for dtype in DType}
_FOLDS: Final = {Sum: np.add, Min: np.minimum, Max: np.maximum, Product: np.multiply}
_FOLDS_OF_BOOL: Final = {Sum: np.maximum, Min: np.minimum, Max: np.maximum, Product: np.minimum}


def folding(dtype: DType, op: int) -> Callable[[Array, Array], Array]:
    """Returns ``op`` as a function of two arrays of values."""
    return (_FOLDS_OF_BOOL if dtype is DType.BOOL else _FOLDS)[op]


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
    limits = np.iinfo(values.dtype)
    products = np.trunc(values.astype(np.float64) * factor)
    is_low, is_high = products <= float(limits.min), products >= float(limits.max) + 1
    within = np.where(is_low | is_high, 0, products).astype(values.dtype)
    return np.where(is_low, limits.min, np.where(is_high, limits.max, within)).astype(values.dtype)
