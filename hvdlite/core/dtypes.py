"""Element types and reduce operations, with the numbers that the wire and the native library use."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, Final

import numpy as np


class DType(IntEnum):
    """Element type of a tensor. The values are part of the native ABI and of the wire format."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def is_floating(self) -> bool:
        return DType.FLOAT16 <= self <= DType.FLOAT64

    def __str__(self) -> str:
        return self.name.lower()


_ITEMSIZE: Final = (1, 1, 2, 4, 8, 2, 2, 4, 8, 1)

# Plain ints, as Horovod has them, so that scripts that compare or store them keep working.
Average: Final = 0
Sum: Final = 1
Adasum: Final = 2
Min: Final = 3
Max: Final = 4
Product: Final = 5

OP_NAMES: Final = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max", Product: "Product"}


@cache
def from_numpy(dtype: np.dtype[np.generic]) -> DType:
    """The DType of a numpy dtype (``bfloat16`` by name, as ml_dtypes registers it). Raises ValueError if none."""
    found = _BY_NAME.get(dtype.name)
    if found is None or not dtype.isnative:
        supported = ", ".join(_BY_NAME)
        raise ValueError(f"dtype {dtype} is not supported; hvdlite takes native-endian {supported}")
    return found


_BY_NAME: Final = {str(dtype): dtype for dtype in DType}
BY_NUMPY: Final[dict[np.dtype[Any], DType]] = {
    np.dtype(name): dtype for name, dtype in _BY_NAME.items() if dtype is not DType.BFLOAT16
}
"""What `from_numpy` says of numpy's own dtypes, for who asks often."""
