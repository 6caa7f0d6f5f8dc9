"""Which of NCCL's operations computes what was asked for."""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import numpy as np

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.arithmetic import bits_of, values_of
from hvdlite.planes.nccl.library import AVERAGE, FLOAT8_CAPABILITY, OLDEST_FLOAT8, OPERATIONS, TYPES, dotted
from hvdlite.tensors.dtypes import Average, DType, ElementType, Max, Min, Product, Sum

_OF_BOOL: Final = {Sum: Max, Max: Max, Product: Min, Min: Min}
_SCALARS: Final[dict[DType, Any]] = {
    DType.FLOAT16: ctypes.c_uint16,
    DType.BFLOAT16: ctypes.c_uint16,
    DType.FLOAT32: ctypes.c_float,
    DType.FLOAT64: ctypes.c_double,
}


class Reduction(NamedTuple):
    """NCCL's operation on elements of a type. With a ``scalar`` it is a sum that multiplies by it before it adds.

    ``before`` and ``after`` it, kernels multiply, if the factors are not 1.
    """

    element: ElementType
    operation: int
    scalar: Any = None
    before: float = 1.0
    after: float = 1.0

    @property
    def dtype(self) -> int:
        """NCCL's number of the type."""
        return TYPES[self.element]

    @property
    def has_kernels(self) -> bool:
        return self.before != 1 or self.after != 1

    def count(self, nbytes: int) -> int:
        """Returns the number of elements in ``nbytes``."""
        return nbytes // self.element.itemsize


def lack(dtype: ElementType, op: int) -> str:
    """Returns why NCCL does not reduce ``dtype`` with ``op``, and what to pass instead; empty if it does."""
    if op == Average:  # floats never come with it
        return (
            f"NCCL adds {dtype} as {dtype}, so that a sum may wrap around before it is divided; pass tensor.cpu(), or "
            "tensor.double()"
        )
    if dtype in TYPES or dtype is DType.BOOL:
        return ""
    return f"NCCL does not reduce {dtype}; pass tensor.int(), or tensor.cpu()"


def lack_of_float8(
    version: int, capability: tuple[int, int], op: int, prescale: float, postscale: float, size: int
) -> str:
    """Returns why float8 is not reduced like this, and what to pass instead; empty if it is.

    ``version`` is NCCL's and ``capability`` the GPU's. A factor would be rounded to three digits or two, so only the
    factor of an average is taken.
    """
    if version < OLDEST_FLOAT8:
        return f"NCCL {dotted(version)} does not reduce float8, which {dotted(OLDEST_FLOAT8)} does; pass tensor.half()"
    if capability < FLOAT8_CAPABILITY:
        needed, found = (".".join(map(str, each)) for each in (FLOAT8_CAPABILITY, capability))
        return (
            f"NCCL reduces float8 on GPUs of compute capability {needed}, and this one has {found}; pass tensor.half()"
        )
    if (prescale, postscale) == (1, 1) or _is_average(op, prescale, postscale, size):
        return ""
    return "float8 has no scale factors; pass hvd.Sum or hvd.Average without them, or tensor.half()"


def reduction(
    dtype: ElementType, op: int, prescale: float, postscale: float, size: int, is_packed: bool = False
) -> Reduction:
    """Chooses for ``postscale * op(prescale * x)`` of ``size`` ranks. Raises HorovodInternalError for lacking types.

    A sum of floats multiplies once, before it adds, by the product of both factors, rounded to the type. NCCL does so
    itself; but where kernels pack the elements anyway, they do, with the same results, and NCCL has its fastest sum.
    Other averages are NCCL's own. For the rest kernels multiply twice, as in `DataPlane.allreduce`.
    """
    if reason := lack(dtype, op):
        raise HorovodInternalError(reason)
    if dtype is DType.BOOL:  # 0 and 1; scales do not matter
        return Reduction(DType.UINT8, OPERATIONS[_OF_BOOL[op]])
    if not isinstance(dtype, DType):  # float8, of which kernels know nothing
        return Reduction(dtype, AVERAGE if postscale != 1 else OPERATIONS[op])
    is_sum_of_floats = op == Sum and dtype.is_floating
    factor = prescale * postscale
    if prescale == postscale == 1 or (is_sum_of_floats and factor == 1):
        return Reduction(dtype, OPERATIONS[op])
    if is_sum_of_floats and is_packed:
        return Reduction(dtype, OPERATIONS[Sum], before=_rounded(factor, dtype))
    if _is_average(op, prescale, postscale, size):
        return Reduction(dtype, AVERAGE)
    if is_sum_of_floats:
        return Reduction(dtype, OPERATIONS[Sum], scalar=_scalar(dtype, factor))
    return Reduction(dtype, OPERATIONS[op], before=prescale, after=postscale)


def _is_average(op: int, prescale: float, postscale: float, size: int) -> bool:
    return op == Sum and prescale == 1 and postscale == 1 / size


def _rounded(factor: float, dtype: DType) -> float:
    """Rounds to a 16-bit type as `_scalar` does. Kernels round to others themselves."""
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        return float(values_of(bits_of(np.array([factor], np.float32), dtype), dtype)[0])
    return factor


def _scalar(dtype: DType, factor: float) -> Any:
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        bits = bits_of(np.array([factor], np.float32), dtype)
        return ctypes.c_uint16(int(bits.view(np.uint16)[0]))
    return _SCALARS[dtype](factor)
