"""The collectives for numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.ops.collectives import Collectives
from hvdlite.ops.numbers import array_of, as_it_was
from hvdlite.tensors.buffer import address_of, of_array

Array = npt.NDArray[Any]


class _NumpyAdapter:
    buffer = staticmethod(of_array)
    finish = None

    def of_number(self, value: Any) -> tuple[Array, Callable[[Array], Any]] | None:
        array = array_of(value)
        return None if array is None else (array, as_it_was(value))

    def empty(self, shape: Sequence[int], like: Array) -> tuple[Array, int]:
        output = np.empty(shape, like.dtype)
        return output, address_of(output)

    def counts(self, values: Sequence[int]) -> Array:
        return np.array(values, np.int32)


collectives = Collectives[Array](_NumpyAdapter())
