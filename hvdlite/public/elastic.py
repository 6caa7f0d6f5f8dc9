"""Names of Horovod's elastic training, which hvdlite does not have: each raises a sentence when it is used.

It is the module ``elastic`` of every front end.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = [
    "CommitStateCallback",
    "ElasticSampler",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "TorchState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

__path__: list[str] = []  # a package, because of horovod.torch.elastic.state


def run(func: Any) -> NoReturn:
    """Raises NotImplementedError, with what to do instead."""
    raise NotImplementedError(
        "hvdlite's jobs keep their ranks, so there is no elastic training; save checkpoints, and start the job again"
    )


class State:
    """Raises what `run` does, under each name of a state, a sampler or a callback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        run(None)


ObjectState = TorchState = TensorFlowState = TensorFlowKerasState = KerasState = State
CommitStateCallback = UpdateBatchStateCallback = UpdateEpochStateCallback = ElasticSampler = State
