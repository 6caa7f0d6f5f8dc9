"""The models that callbacks are for."""

from __future__ import annotations

from typing import Any

from hvdlite.keras import keras_2


class OfKeras3:
    """Precedes the class of Keras in a callback, which then refuses models of Keras 2."""

    def set_model(self, model: Any) -> None:
        keras_2.refuse_model(model)
        super().set_model(model)  # type: ignore[misc]
