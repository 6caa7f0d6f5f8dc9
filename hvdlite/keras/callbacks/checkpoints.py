"""Checkpoints that one rank writes."""

from __future__ import annotations

from typing import Any

import keras

from hvdlite.keras.callbacks.models import OfKeras3
from hvdlite.session import rank


class BestModelCheckpoint(OfKeras3, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """`keras.callbacks.ModelCheckpoint` of the best model so far, which rank 0 writes.

    Put it after `MetricAverageCallback`, so that the metrics of all ranks decide. ``filepath`` may be set as an
    attribute before training.
    """

    def __init__(
        self,
        filepath: Any = "best.keras",
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        **others: Any,
    ) -> None:
        super().__init__(
            filepath, monitor=monitor, verbose=verbose, save_best_only=True, mode=mode, save_freq=save_freq, **others
        )

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if rank() == 0:
            super()._save_model(*args, **kwargs)
