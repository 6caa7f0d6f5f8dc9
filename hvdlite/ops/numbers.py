"""Numbers in place of tensors: a number travels as an array without dimensions, and the result is a number again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Number = TypeVar("Number", bound="int | float | complex | np.generic")

_DTYPES = {int: np.int64, float: np.float64, complex: np.complex128}


def is_number(value: object) -> bool:
    """True if ``value`` is a Python or numpy number."""
    return isinstance(value, (*_DTYPES, np.generic))


def array_of(value: Any) -> Array | None:
    """Converts a number to an array; None for anything else. ValueError for a bool, and for an int beyond 64 bits."""
    if isinstance(value, np.generic):
        return np.array(value)
    if isinstance(value, bool):
        raise ValueError("a bool is not accepted as a number; pass int(x), or numpy.bool_(x) for op=hvd.Min or Max")
    for kind, dtype in _DTYPES.items():
        if isinstance(value, kind):
            try:
                return np.array(value, dtype)
            except OverflowError:
                raise ValueError(f"{value} does not fit into 64 bits; pass float(x)") from None
    return None


def as_it_was(value: Any) -> Callable[[Any], Any]:
    """Returns a function that converts an array without dimensions to a number like ``value``.

    It returns any other array as it is, such as a result without rows.
    """
    is_of_numpy = isinstance(value, np.generic)

    def convert(result: Any) -> Any:
        if not isinstance(result, np.ndarray) or result.ndim:
            return result
        return result[()] if is_of_numpy else result.item()

    return convert
