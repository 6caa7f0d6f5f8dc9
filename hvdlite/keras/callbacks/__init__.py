"""Callbacks for `fit`: `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` and others."""

# ruff: noqa: I001 - one statement for each module

from hvdlite.keras.callbacks.checkpoints import BestModelCheckpoint as BestModelCheckpoint
from hvdlite.keras.callbacks.learning_rate import (
    LearningRateScheduleCallback as LearningRateScheduleCallback,
    LearningRateWarmupCallback as LearningRateWarmupCallback,
)
from hvdlite.keras.callbacks.metrics import MetricAverageCallback as MetricAverageCallback
from hvdlite.keras.callbacks.state import BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback
from hvdlite.publish import publish as _publish

_publish(__name__)
