"""Metrics of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from hvdlite.keras.callbacks.models import OfKeras3
from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.ops.objects import allgather_object


class MetricAverageCallback(OfKeras3, keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of each epoch over the ranks, for the callbacks after it in the list and for the history.

    Put it before callbacks that look at metrics, such as `keras.callbacks.ReduceLROnPlateau` and ``EarlyStopping``,
    which then decide alike on all ranks. Averages count each rank the same. ``device`` is accepted for Horovod scripts.

    Raises ValueError on all ranks if they have different metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replaces each metric in ``logs`` by its average."""
        if logs is None:
            return
        own = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        of_rank = dict(zip(self.process_set.ranks or (), self._gathered(own), strict=True))
        for rank, metrics in of_rank.items():
            if metrics.keys() != own.keys():
                raise ValueError(
                    f"ranks have different metrics at the end of an epoch: rank {rank} has {sorted(metrics)}, and this "
                    f"one {sorted(own)}; compile with the same metrics, and validate on all ranks"
                )
        logs.update({name: float(np.mean([metrics[name] for metrics in of_rank.values()])) for name in own})

    def _gathered(self, own: Mapping[str, float]) -> list[dict[str, float]]:
        return allgather_object(own, "metrics of an epoch", self.process_set)
