"""Learning rates that follow the epoch, and ramp up while ranks begin to train with a large batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras

from hvdlite.keras.callbacks.models import OfKeras3
from hvdlite.session import rank, size

Multiplier = float | Callable[[float], float]


class LearningRateScheduleCallback(OfKeras3, keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr * multiplier`` from ``start_epoch`` on, before ``end_epoch``.

    ``multiplier`` is a number, or a function of the epoch. Unless ``staircase``, epochs are fractions, and the rate
    changes with each batch, for which ``steps_per_epoch`` is needed where `fit` does not know it.

    With ``momentum_correction``, the momentum of SGD and RMSprop follows each change of the rate: their velocities are
    sums of gradients times earlier rates, and are multiplied by the new rate over the one before it. On that step, this
    is Horovod's multiplied momentum; where Nesterov's is ahead of the step, it is that of the paper. A warning says if
    an optimizer has another momentum, which is left as it is.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
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
        """Looks for what it needs."""
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
        if hasattr(self.model, "jax_state_sync"):  # there the next step reads variables only after this
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
    """The variables in which the learning rate is a factor; none before the first step. None for other optimizers."""
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
            # A batch counts when it is done, so that the last one of the warm-up has the full rate.
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
        """Tells on rank 0, with ``verbose``, that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and rank() == 0 and self.end_epoch and epoch == math.ceil(self.end_epoch) - 1:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")
