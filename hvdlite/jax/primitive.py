"""A collective of several arrays as one step of a JAX program, also of a compiled one and in a derivative.

Inside `jax.jit` it is an ordered callback to the host: XLA neither leaves it out nor repeats it, and it keeps the
program's order with all others, so ranks that run the same program call their collectives in the same order. A pure
callback costs a third, and has none of these properties.

JAX gives the error of a callback to the caller as a JaxRuntimeError that has the text of ours; `last_error` has the
object.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import io_callback

from hvdlite.errors import HvdError
from hvdlite.jax.eager import collectives
from hvdlite.ops import Collectives
from hvdlite.ops.arrays import collectives as arrays
from hvdlite.training.explanations import explaining

Leaves = list[Any]


class Call(Protocol):
    """A collective with all its arguments but the arrays. Equal calls are the same to JAX, so it can be hashed."""

    def run(self, collectives: Collectives[Any], leaves: Leaves, has_shapes: bool) -> Leaves:
        """Runs it on arrays that have values. It ``has_shapes`` to return if it told `results` to JAX."""

    def results(self, leaves: Leaves) -> Sequence[Any]:
        """Returns the shape and dtype of each result, as JAX describes them."""

    def gradients(self, leaves: Leaves) -> Leaves:
        """Returns the gradients of the floating-point inputs, from those of their results."""


def cross(call: Call, leaves: Leaves) -> Leaves:
    """Runs ``call`` now or, where the arrays have no values yet, when JAX's program comes to this point."""
    if _have_values(leaves):
        return _at_once(call, leaves)
    return list(_crossed(call, [jax.numpy.asarray(leaf) for leaf in leaves]))


def last_error() -> HvdError | ValueError | None:
    """Returns the error of the last collective of a compiled function that failed, None if there was none."""
    return _last_error


_last_error: HvdError | ValueError | None = None


def _have_values(leaves: Leaves) -> bool:
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _at_once(call: Call, leaves: Leaves) -> Leaves:
    jax.effects_barrier()  # compiled functions that were called before come first, as on the other ranks
    return call.run(collectives, leaves, has_shapes=False)


def _in_callback(call: Call, *leaves: Any) -> Leaves:
    """Runs ``call`` on memory of the host, without a JAX program inside of one."""
    global _last_error
    try:
        with explaining():
            return call.run(arrays, [np.asarray(leaf) for leaf in leaves], has_shapes=True)
    except (HvdError, ValueError) as error:
        _last_error = error
        raise


def _run(call: Call, leaves: Leaves) -> Leaves:
    if _have_values(leaves):
        return _at_once(call, leaves)
    return list(io_callback(partial(_in_callback, call), list(call.results(leaves)), *leaves, ordered=True))


def _forward(call: Call, leaves: Leaves) -> tuple[Leaves, Sequence[Any]]:
    """Calls what has a derivative, for derivatives of derivatives."""
    return _crossed(call, leaves), [None if _is_floating(leaf) else leaf.shape for leaf in leaves]


def _backward(call: Call, shapes: Sequence[Any], gradients: Leaves) -> tuple[Leaves]:
    floating = [gradient for gradient, shape in zip(gradients, shapes, strict=True) if shape is None]
    found = iter(call.gradients(floating))
    return ([next(found) if shape is None else _no_gradient(shape) for shape in shapes],)


def _is_floating(leaf: Any) -> bool:
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact))


def _no_gradient(shape: Sequence[int]) -> Any:
    """Returns what JAX takes for the gradient of integers."""
    return np.zeros(shape, jax.dtypes.float0)


_crossed = jax.custom_vjp(_run, nondiff_argnums=(0,))
_crossed.defvjp(_forward, _backward)


class _NotOurs(logging.Filter):
    """JAX logs the traceback of an error in a callback, and raises it as well. For ours the second is enough."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and record.exc_info[1] is not None and record.exc_info[1] is _last_error)


logging.getLogger("jax._src.callback").addFilter(_NotOurs())
