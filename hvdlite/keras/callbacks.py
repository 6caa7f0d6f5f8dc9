"""Callbacks for `fit`: `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` and others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from hvdlite.keras import keras_2
from hvdlite.keras.values import broadcast_variables
from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.ops.objects import allgather_object, broadcast_object
from hvdlite.session import rank, size

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_Multiplier = float | Callable[[float], float]


class _OfKeras3:
    """The first base of a callback, which refuses models of Keras 2."""

    def set_model(self, model: Any) -> None:
        keras_2.refuse_model(model)
        super().set_model(model)  # type: ignore[misc]


class BroadcastGlobalVariablesCallback(_OfKeras3, keras.callbacks.Callback):  # type: ignore[misc]
    """Gives the model's weights and the optimizer's state of ``root_rank`` to all ranks when training begins.

    Also the epoch at which `keras.callbacks.BackupAndRestore` resumes, if that is before this callback in the list, so
    only the root needs the backup. If any rank builds its model in the first step, all broadcast after that step.
    ``local_variables`` are left as they are. ``device`` is accepted for Horovod scripts.

    Raises ValueError on all ranks if they would take different numbers of steps, and for layers that synchronize
    batch normalization by `tf.distribute`.
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
        """Broadcasts if all ranks have built their models."""
        gathered = allgather_object(
            ((self.params or {}).get("steps"), self.model.built), "the beginning of training", self.process_set
        )
        steps, built = zip(*gathered, strict=True)
        self._compare(steps)
        self._refuse_synchronized()
        self._is_done = all(built)
        if self._is_done:
            if not self.model.optimizer.built:  # with TensorFlow, it is built in the first step
                self.model.optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first step, in which every model was built."""
        if not self._is_done:
            self._is_done = True
            if hasattr(self.model, "jax_state_sync"):  # with JAX, the state is not in the variables yet
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
            pairs = zip(self.process_set.ranks or (), steps, strict=True)
            listed = ", ".join(f"rank {member} {count}" for member, count in pairs)
            raise ValueError(
                f"ranks would take different numbers of steps in an epoch ({listed}), and those that take more would "
                f"wait for the others; pass steps_per_epoch={min(known)} to fit() on all ranks, with data that repeats"
            )


class MetricAverageCallback(_OfKeras3, keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of each epoch over the ranks, for the callbacks after it in the list and for the history.

    Put it before callbacks that read metrics, such as `keras.callbacks.ReduceLROnPlateau` and ``EarlyStopping``, so
    that they decide alike on all ranks. All ranks have the same weight. ``device`` is accepted for Horovod scripts.

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
        gathered: list[Mapping[str, float]] = allgather_object(own, "metrics of an epoch", self.process_set)
        of_rank = dict(zip(self.process_set.ranks or (), gathered, strict=True))
        for member, metrics in of_rank.items():
            if metrics.keys() != own.keys():
                raise ValueError(
                    f"ranks have different metrics at the end of an epoch: rank {member} has {sorted(metrics)}, and "
                    f"this one {sorted(own)}; compile with the same metrics, and validate on all ranks"
                )
        logs.update({name: float(np.mean([metrics[name] for metrics in of_rank.values()])) for name in own})


class LearningRateScheduleCallback(_OfKeras3, keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr * multiplier`` from ``start_epoch`` on, before ``end_epoch``.

    ``multiplier`` is a number, or a function of the epoch. Unless ``staircase``, epochs are fractions, and the rate
    changes with each batch, for which ``steps_per_epoch`` is needed where `fit` does not know it.

    With ``momentum_correction``, the momentum of SGD and RMSprop follows each change of the rate: their velocities,
    sums of gradients times earlier rates, are multiplied by the new rate divided by the old one. For that step this is
    Horovod's multiplied momentum; with Nesterov's momentum it is the correction of the paper. Warns if an optimizer has
    another momentum, which is not changed.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: _Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is needed, the learning rate that the multiplier is for")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase if callable(multiplier) else True
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Raises ValueError if the number of steps is needed and unknown."""
        if not self.staircase and not self._steps():
            raise ValueError(
                f"{type(self).__name__} changes the rate with each batch, and does not know how many an epoch has; "
                "pass steps_per_epoch to it or to fit()"
            )
        optimizer = self._optimizer()
        if self.momentum_correction and getattr(optimizer, "momentum", None) and _velocities(optimizer) is None:
            warnings.warn(
                f"momentum_correction has no effect on the momentum of {type(optimizer).__name__}, only on that of SGD "
                "and RMSprop; pass momentum_correction=False",
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the rate of the epoch."""
        self.current_epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of the batch."""
        if not self.staircase:
            self._adjust(self.current_epoch + batch / self._steps())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the rate to ``logs``, as ``lr``."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _adjust(self, epoch: float) -> None:
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if hasattr(self.model, "jax_state_sync"):  # with JAX, the next step reads variables only after this
            self.model.jax_state_sync()
        optimizer, before = self._optimizer(), self._rate()
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        if self.momentum_correction and before and (rate := self._rate()) != before:
            for velocity in _velocities(optimizer) or ():
                velocity.assign(velocity * (rate / before))

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self._optimizer().learning_rate))

    def _optimizer(self) -> Any:
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _steps(self) -> int:
        return self.steps_per_epoch or (self.params or {}).get("steps") or 0


def _velocities(optimizer: Any) -> Sequence[Any] | None:
    """Returns the variables that have the learning rate as a factor: none before the first step; None if unknown."""
    if isinstance(optimizer, keras.optimizers.SGD):
        return optimizer.momentums if optimizer.built else ()
    if isinstance(optimizer, keras.optimizers.RMSprop):
        return optimizer._momentums if optimizer.built else ()
    return None


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size()`` to ``initial_lr`` during the first ``warmup_epochs``.

    ``initial_lr`` is the rate for all ranks together. See "Accurate, Large Minibatch SGD" (Goyal et al., 2017).
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # A batch counts at its end, so that the last one of the warm-up has the full rate.
            epoch += 1.0 / self._steps()
            return min(1.0, 1.0 / size() * (epoch * (size() - 1) / warmup_epochs + 1))

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,  # type: ignore[arg-type]
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints on rank 0, with ``verbose``, that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and rank() == 0 and self.end_epoch and epoch == math.ceil(self.end_epoch) - 1:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class BestModelCheckpoint(_OfKeras3, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
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


def __dir__() -> list[str]:
    return __all__
