"""Loads models that were saved with a distributed optimizer, which is a bare one in the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from hvdlite.keras import backend
from hvdlite.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = backend.Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model as `keras.models.load_model` does, and makes its optimizer a `DistributedOptimizer` again.

    ``custom_optimizers`` are classes of optimizers that Keras does not have. ``legacy_opts`` is accepted for Horovod
    scripts and ignored.
    """
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
