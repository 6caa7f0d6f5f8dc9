"""How each back end of Keras reduces several tensors in one call, inside of its compiled step.

`reduce` is the function of the back end in use. It takes tensors, a name, the variables if the tensors are gradients,
whether sparse gradients travel densely, which only TensorFlow has, and the arguments of the back end's all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from hvdlite.training.explanations import explain, explaining

Reduce = Callable[..., list[Any]]


class BackEnd(NamedTuple):
    """Its reduction of several tensors, its compressions, and the original error of its latest compiled step."""

    reduce: Reduce
    Compression: Any
    Compressor: Any
    last_error: Callable[[], BaseException | None]


def _of_jax() -> BackEnd:
    import hvdlite.jax as hvd

    def reduce(tensors: list[Any], name: str, variables: Sequence[Any], is_dense: bool, **how: Any) -> list[Any]:
        explain(name, variables)
        with explaining():
            reduced: list[Any] = hvd.allreduce(tensors, name=name, **how)
        return reduced

    return BackEnd(reduce, hvd.Compression, hvd.Compressor, hvd.last_error)


def _of_torch() -> BackEnd:
    import torch

    import hvdlite.torch as hvd

    def reduce(tensors: list[Any], name: str, variables: Sequence[Any], is_dense: bool, **how: Any) -> list[Any]:
        with torch.no_grad(), explaining(name, variables):
            return hvd.grouped_allreduce(tensors, name=name, **how)

    return BackEnd(reduce, hvd.Compression, hvd.Compressor, lambda: None)


def _of_tensorflow() -> BackEnd:
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    def reduce(tensors: list[Any], name: str, variables: Sequence[Any], is_dense: bool, **how: Any) -> list[Any]:
        is_scaled = how.get("prescale_factor", 1.0) != 1.0 or how.get("postscale_factor", 1.0) != 1.0
        if is_dense or is_scaled:  # slices travel without scaling
            tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        is_sparse = [isinstance(tensor, tf.IndexedSlices) for tensor in tensors]  # these travel separately
        explain(name, [variable for variable, sparse in zip(variables, is_sparse, strict=False) if not sparse])
        return hvd.grouped_allreduce(tensors, name=name, **how)

    return BackEnd(reduce, hvd.Compression, hvd.Compressor, hvd.last_error)


_BACK_ENDS = {"jax": _of_jax, "torch": _of_torch, "tensorflow": _of_tensorflow}


def is_traced(value: Any) -> bool:
    """True for a value that JAX traces a compiled function with."""
    import jax

    return isinstance(value, jax.core.Tracer)


NAME: str = keras.backend.backend()
if NAME not in _BACK_ENDS:
    raise ValueError(f"hvdlite.keras trains on the back ends {', '.join(_BACK_ENDS)}; KERAS_BACKEND is {NAME!r}")
_used = _BACK_ENDS[NAME]()
reduce, Compression, Compressor = _used.reduce, _used.Compression, _used.Compressor


def last_error() -> BaseException | None:
    """Returns the error of the latest compiled step that failed; None if none did.

    Such a step raises an error of the back end with the same text. Steps that are not compiled raise the error itself.
    """
    return _used.last_error()
