"""Optimizers and models of the package tf_keras: most of the optimizers are supported, and the models are refused."""

from __future__ import annotations

import sys
from typing import Any

from hvdlite.keras import backend

_NO_LOSS_SCALING = "loss scaling is not supported with tf_keras; use float32 or bfloat16 there, or Keras 3"

_WRAPPED = "_is_wrapped_by_loss_scale_optimizer"  # loss scaling sets it on the optimizer inside


def has_made(optimizer: Any) -> bool:
    """True for an optimizer of tf_keras. It clips gradients in the same method as one of Keras 3."""
    package = sys.modules.get("tf_keras")
    return package is not None and isinstance(optimizer, package.optimizers.Optimizer)


def check(optimizer: Any, passes: int, local_layers: list[Any]) -> None:
    """Raises ValueError for choices that such an optimizer does not support."""
    if backend.NAME != "tensorflow":
        raise ValueError(f"an optimizer of tf_keras works on TensorFlow only, and KERAS_BACKEND is {backend.NAME!r}")
    if hasattr(optimizer, "inner_optimizer") or getattr(optimizer, _WRAPPED, False):
        raise ValueError(_NO_LOSS_SCALING)
    if passes != 1 or local_layers:
        raise ValueError("backward_passes_per_step and local_layers are not supported with tf_keras; use Keras 3")


def refuse_model(model: Any) -> None:
    """Raises ValueError for a model of tf_keras, because its `fit` would call callbacks of Keras 3."""
    package = sys.modules.get("tf_keras")
    if package is not None and isinstance(model, package.Model):
        raise ValueError(
            "hvd.callbacks are for models of Keras 3, and this one is of tf_keras; before fit(), call "
            "hvdlite.tensorflow.broadcast_variables(model.variables, 0), and reduce metrics with hvd.allreduce"
        )


def _refuse_loss_scaling(optimizer: Any, is_wrapped: bool) -> None:
    raise ValueError(_NO_LOSS_SCALING)


WITHOUT_LOSS_SCALING = {_WRAPPED: property(lambda optimizer: False, _refuse_loss_scaling)}
"""Attributes of an optimizer's class that prevent loss scaling around it, by `compile` or by users."""
