"""Which of NCCL's operations computes what was asked for."""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import numpy as np

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.arithmetic import bits_of
from hvdlite.planes.nccl.library import AVERAGE, OPERATIONS, TYPES
from hvdlite.tensors.dtypes import OP_NAMES, DType, Max, Min, Product, Sum

_OF_BOOL: Final = {Sum: Max, Max: Max, Product: Min, Min: Min}
_SCALARS: Final[dict[DType, Any]] = {
    DType.FLOAT16: ctypes.c_uint16,
    DType.BFLOAT16: ctypes.c_uint16,
    DType.FLOAT32: ctypes.c_float,
    DType.FLOAT64: ctypes.c_double,
}


class Reduction(NamedTuple):
    """NCCL's element type and operation. With a ``scalar`` it is a sum of elements that are multiplied by it before."""

    dtype: int
    itemsize: int
    operation: int
    scalar: Any = None

    def count(self, nbytes: int) -> int:
        """Returns the number of elements in ``nbytes``."""
        return nbytes // self.itemsize


def lack(dtype: DType, op: int, prescale: float, postscale: float, size: int) -> str:
    """Returns why NCCL cannot compute ``postscale * op(prescale * x)``, and what to pass instead; empty if it can."""
    if dtype is DType.BOOL:
        return ""
    if dtype not in TYPES:
        return f"NCCL does not reduce {dtype}; pass tensor.int(), or tensor.cpu()"
    if prescale * postscale == 1 or _is_average(op, prescale, postscale, size):
        return ""
    if op != Sum or not dtype.is_floating:
        return f"NCCL has no {OP_NAMES[op]} of {dtype} with scale factors; multiply the tensor, or pass tensor.cpu()"
    return ""


def reduction(dtype: DType, op: int, prescale: float, postscale: float, size: int) -> Reduction:
    """Chooses for ``postscale * op(prescale * x)`` of ``size`` ranks. Raises HorovodInternalError if NCCL cannot.

    A float is multiplied once, before it is added, by the product of both factors, which is rounded to its type. An
    average is NCCL's own.
    """
    if reason := lack(dtype, op, prescale, postscale, size):
        raise HorovodInternalError(reason)
    if dtype is DType.BOOL:  # 0 and 1; scales do not matter
        return Reduction(TYPES[DType.UINT8], 1, OPERATIONS[_OF_BOOL[op]])
    number, itemsize, factor = TYPES[dtype], dtype.itemsize, prescale * postscale
    if factor == 1:
        return Reduction(number, itemsize, OPERATIONS[op])
    if _is_average(op, prescale, postscale, size):
        return Reduction(number, itemsize, AVERAGE)
    return Reduction(number, itemsize, OPERATIONS[Sum], _scalar(dtype, factor))


def _is_average(op: int, prescale: float, postscale: float, size: int) -> bool:
    """True for an average. That of integers comes with the next larger factor where 1 / size would truncate too far."""
    return op == Sum and prescale == 1 and postscale in (1 / size, np.nextafter(1 / size, 1))


def _scalar(dtype: DType, factor: float) -> Any:
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        bits = bits_of(np.array([factor], np.float32), dtype)
        return ctypes.c_uint16(int(bits.view(np.uint16)[0]))
    return _SCALARS[dtype](factor)
