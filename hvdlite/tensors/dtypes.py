"""Element types and reduce operations, with the numbers that the wire and the native library use."""

from __future__ import annotations

from enum import IntEnum
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

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
    def is_integer(self) -> bool:
        return self <= DType.INT64

    @property
    def is_floating(self) -> bool:
        return DType.FLOAT16 <= self <= DType.FLOAT64

    def __str__(self) -> str:
        return self.name.lower()


_ITEMSIZE: Final = (1, 1, 2, 4, 8, 2, 2, 4, 8, 1)

MAX_DTYPE_CHARACTERS: Final = 256
MAX_ITEMSIZE: Final = 1 << 20


class Opaque(NamedTuple):
    """An element type that is moved as bytes. Ranks compare its name.

    Only complex numbers are also added, and `FLOAT8` by planes of devices that can.
    """

    name: str
    itemsize: int

    @property
    def is_integer(self) -> bool:
        """False, also of integers: none of these is reduced as one."""
        return False

    @property
    def is_floating(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.name


ElementType = DType | Opaque

_PARTS: Final = {
    Opaque("complex32", 4): DType.FLOAT16,
    Opaque("complex64", 8): DType.FLOAT32,
    Opaque("complex128", 16): DType.FLOAT64,
}


FLOAT8: Final = (Opaque("float8_e4m3fn", 1), Opaque("float8_e5m2", 1))


def is_complex(dtype: ElementType) -> bool:
    return dtype in _PARTS


def added_as(dtype: ElementType) -> ElementType | None:
    """Returns the type in which ``dtype`` is added: itself, or the type of complex parts; None if it has no sums."""
    return dtype if isinstance(dtype, DType) or dtype in FLOAT8 else _PARTS.get(dtype)


# Plain ints, as in Horovod, for scripts that compare or store them.
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
    found = BY_NAME.get(dtype.name)
    if found is None or not dtype.isnative:
        raise ValueError(f"dtype {dtype} is not supported; hvdlite takes native-endian {', '.join(BY_NAME)}")
    return found


@lru_cache(maxsize=1024)
def element_type(dtype: np.dtype[Any]) -> ElementType:
    """The element type of any numpy dtype of a fixed size. Raises ValueError for one without."""
    if dtype.hasobject or not 0 < dtype.itemsize <= MAX_ITEMSIZE:
        raise ValueError(
            f"dtype {dtype} is not supported: its elements are not bytes of a fixed size; "
            "hvd.broadcast_object and hvd.allgather_object take any object that pickles"
        )
    if dtype.isnative and dtype.name in BY_NAME:  # also ml_dtypes' bfloat16, which numpy takes for raw bytes
        return BY_NAME[dtype.name]
    is_plain = dtype.isnative and dtype.names is None and dtype.kind not in "SUV"  # fully described by numpy's name
    name = dtype.name if is_plain else str(dtype)
    if len(name) > MAX_DTYPE_CHARACTERS:
        raise ValueError(f"dtype {name:.60}... has a description of {len(name)} characters; pass array.view('V')")
    return Opaque(name, dtype.itemsize)


BY_NAME: Final = {str(dtype): dtype for dtype in DType}
BY_NUMPY: Final[dict[np.dtype[Any], DType]] = {
    np.dtype(name): dtype for name, dtype in BY_NAME.items() if dtype is not DType.BFLOAT16
}
"""The results of `from_numpy` for numpy's own dtypes, for hot paths."""
