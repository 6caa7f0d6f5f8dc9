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
    """Raises NotImplementedError, with what to do instead."""
    raise NotImplementedError(
        "hvdlite's jobs keep their ranks, so there is no elastic training; save checkpoints, and start the job again"
    )


class TensorFlowState:
    """Raises what `run` does, under each name of a state or a callback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        run(None)


TensorFlowKerasState = KerasState = TensorFlowState
CommitStateCallback = UpdateBatchStateCallback = UpdateEpochStateCallback = TensorFlowState
