"""The beginning of training: the same state and the same number of steps on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hvdlite.keras.callbacks.models import OfKeras3
from hvdlite.keras.values import broadcast_variables
from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.ops.objects import allgather_object, broadcast_object


class BroadcastGlobalVariablesCallback(OfKeras3, keras.callbacks.Callback):  # type: ignore[misc]
    """Gives the model's weights and the optimizer's state of ``root_rank`` to all ranks when training begins.

    So it does with the epoch at which `keras.callbacks.BackupAndRestore` resumes, if that comes before it in the list:
    only the root needs the backup. If any rank builds its model during the first step only, all broadcast after it.
    ``local_variables`` are left as they are. ``device`` is accepted for Horovod scripts.

    Raises ValueError on all ranks if they are about to take different numbers of steps, and for layers that would
    normalize the batches of other ranks by `tf.distribute`.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self._local = {id(variable) for variable in local_variables or ()}
        self._is_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts what there is."""
        gathered = allgather_object(
            ((self.params or {}).get("steps"), self.model.built), "the beginning of training", self.process_set
        )
        steps, built = zip(*gathered, strict=True)
        self._compare(steps)
        self._refuse_synchronized()
        self._is_done = all(built)
        if self._is_done:
            if not self.model.optimizer.built:  # TensorFlow's does that in its first step
                self.model.optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first step, which has built all the rest."""
        if not self._is_done:
            self._is_done = True
            if hasattr(self.model, "jax_state_sync"):  # there the step's state is not in the variables yet
                self.model.jax_state_sync()
            self._broadcast()

    def _broadcast(self) -> None:
        variables = [*self.model.weights, *self.model.optimizer.variables]
        unique = {id(variable): variable for variable in variables if id(variable) not in self._local}
        broadcast_variables(unique.values(), self.root_rank, self.process_set)
        first = getattr(self.model, "_initial_epoch", None)
        self.model._initial_epoch = broadcast_object(first, self.root_rank, "initial epoch", self.process_set)

    def _refuse_synchronized(self) -> None:
        for layer in self.model._flatten_layers():
            if getattr(layer, "synchronized", False) and type(layer) is keras.layers.BatchNormalization:
                raise ValueError(
                    f"layer {layer.name!r} has synchronized=True, by which Keras means the replicas of tf.distribute; "
                    "use hvdlite.tensorflow.SyncBatchNormalization for the batches of all ranks"
                )

    def _compare(self, steps: Sequence[int | None]) -> None:
        known = [each for each in steps if each is not None]
        if len(set(known)) > 1:
            told = ", ".join(
                f"rank {rank} {count}" for rank, count in zip(self.process_set.ranks or (), steps, strict=True)
            )
            raise ValueError(
                f"ranks would take different numbers of steps in an epoch ({told}), and those that take more would "
                f"wait for the others; pass steps_per_epoch={min(known)} to fit() on all ranks, with data that repeats"
            )
