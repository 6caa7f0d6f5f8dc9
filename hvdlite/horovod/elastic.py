"""Names of Horovod's elastic training, which hvdlite does not have: each raises a sentence when it is used.

It is the module ``elastic`` of every front end of Horovod for TensorFlow and Keras.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def run(func: Any) -> NoReturn:
    """Always raises NotImplementedError."""
    raise NotImplementedError(
        "hvdlite's jobs keep their ranks, so there is no elastic training; save checkpoints, and start the job again"
    )


class TensorFlowState:
    """Always raises NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        run(None)


class TensorFlowKerasState(TensorFlowState):
    """Always raises NotImplementedError."""


class KerasState(TensorFlowState):
    """Always raises NotImplementedError."""


class CommitStateCallback(TensorFlowState):
    """Always raises NotImplementedError."""


class UpdateBatchStateCallback(TensorFlowState):
    """Always raises NotImplementedError."""


class UpdateEpochStateCallback(TensorFlowState):
    """Always raises NotImplementedError."""
