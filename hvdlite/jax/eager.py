"""The collectives for JAX arrays outside of `jax.jit`. Nothing is written in place: arrays do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from hvdlite.ops import Buffer, Collectives, NotAnArray, address_of, of_array
from hvdlite.ops.numbers import array_of, as_it_was


def finished(received: npt.NDArray[Any]) -> Any:
    """Makes a JAX array; one of 64 bits stays numpy's if JAX would convert it to 32."""
    return jax.numpy.asarray(received) if jax.dtypes.canonicalize_dtype(received.dtype) == received.dtype else received


class _ArrayAdapter:
    """Arrays of JAX and numpy. Of an array on a device, a copy in the host's memory travels."""

    finish = staticmethod(finished)

    def buffer(self, tensor: Any, is_written: bool = False) -> Buffer:
        if isinstance(tensor, jax.core.Tracer):
            raise ValueError(
                "this collective cannot be called inside a function that JAX transforms or compiles; "
                "hvd.allreduce, hvd.broadcast and hvd.allgather can"
            )
        if not isinstance(tensor, (jax.Array, np.ndarray)):
            raise NotAnArray(f"expected a JAX array, got {type(tensor).__name__}; jax.numpy.asarray(x) makes one")
        if is_written:
            raise ValueError("a JAX array cannot be written in place; use the form without _")
        return of_array(np.asarray(tensor))

    def of_number(self, value: Any) -> tuple[Any, Callable[[Any], Any]] | None:
        array, convert = array_of(value), as_it_was(value)
        return None if array is None else (array, lambda tensor: convert(np.asarray(tensor)))

    def empty(self, shape: Sequence[int], like: Any) -> tuple[npt.NDArray[Any], int]:
        output = np.empty(shape, like.dtype)
        return output, address_of(output)

    def counts(self, values: Sequence[int]) -> Any:
        return jax.numpy.asarray(np.array(values, np.int32))


collectives = Collectives[Any](_ArrayAdapter())
