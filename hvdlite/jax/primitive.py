"""A collective of several arrays as one step of a JAX program, also in compiled functions and derivatives.

Inside `jax.jit` it is an ordered callback to the host: XLA neither drops nor repeats it, and keeps all callbacks in the
program's order. So ranks that run the same program call their collectives in the same order. A pure callback costs a
third, and has none of these properties.

JAX raises the error of a callback as a JaxRuntimeError with the same text; `last_error` returns the original.
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
    """A collective and its arguments except the arrays. It is hashable, because JAX compares calls."""

    def run(self, collectives: Collectives[Any], leaves: Leaves, has_shapes: bool) -> Leaves:
        """Runs it on arrays with values. If ``has_shapes``, the results must have the shapes of `results`."""

    def results(self, leaves: Leaves) -> Sequence[Any]:
        """Returns the shape and dtype of each result, as JAX describes them."""

    def gradients(self, leaves: Leaves) -> Leaves:
        """Returns the gradients of the floating-point inputs, from the gradients of their results."""


def cross(call: Call, leaves: Leaves) -> Leaves:
    """Runs ``call`` now or, if the arrays have no values yet, when JAX's program comes to this point."""
    if _have_values(leaves):
        return _at_once(call, leaves)
    return list(_crossed(call, [jax.numpy.asarray(leaf) for leaf in leaves]))


def last_error() -> HvdError | ValueError | None:
    """Returns the error of the last collective that failed in a compiled function; None if none did."""
    return _last_error


_last_error: HvdError | ValueError | None = None


def _have_values(leaves: Leaves) -> bool:
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _at_once(call: Call, leaves: Leaves) -> Leaves:
    jax.effects_barrier()  # first finish compiled functions that were called before, as the other ranks do
    return call.run(collectives, leaves, has_shapes=False)


def _in_callback(call: Call, *leaves: Any) -> Leaves:
    """Runs ``call`` on the host's memory, because a callback must not run JAX programs."""
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
    """Calls the form that has a derivative, for higher derivatives."""
    return _crossed(call, leaves), [None if _is_floating(leaf) else leaf.shape for leaf in leaves]


def _backward(call: Call, shapes: Sequence[Any], gradients: Leaves) -> tuple[Leaves]:
    floating = [gradient for gradient, shape in zip(gradients, shapes, strict=True) if shape is None]
    found = iter(call.gradients(floating))
    return ([next(found) if shape is None else _no_gradient(shape) for shape in shapes],)


def _is_floating(leaf: Any) -> bool:
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact))


def _no_gradient(shape: Sequence[int]) -> Any:
    """Returns JAX's form of a gradient of integers."""
    return np.zeros(shape, jax.dtypes.float0)


_crossed = jax.custom_vjp(_run, nondiff_argnums=(0,))
_crossed.defvjp(_forward, _backward)


class _NotOurs(logging.Filter):
    """Drops JAX's log of an error of hvdlite in a callback, because JAX raises the error as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and record.exc_info[1] is not None and record.exc_info[1] is _last_error)


logging.getLogger("jax._src.callback").addFilter(_NotOurs())
