"""`DistributedOptimizer`: any Keras optimizer, stepping on gradients that are reduced over all ranks.

The class of the optimizer becomes a subclass of its own class. That reduces gradients where Keras would clip them:
after gradients of several steps have been accumulated, and before clipping, weight decay, the update and moving
averages. So each of these gets the gradients that one process with the batches of all ranks would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import keras
from keras import ops

from hvdlite.dynamo import outside_of_graphs
from hvdlite.keras import backend, keras_2
from hvdlite.keras.reduction import GradientReduction, overwrites
from hvdlite.ops import OP_NAMES, Average, ProcessSet, Sum, global_process_set
from hvdlite.training.buckets import merged
from hvdlite.training.reduction import check_choices


class Distributed:
    """The first base of the optimizer's class, before the user's class."""

    _hvdlite: GradientReduction
    _iterations: Any
    _var_key: Any

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        self._hvdlite.variables = list(trainable_variables)
        try:
            super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]
        finally:
            self._hvdlite.variables = ()

    def _overwrite_variables_directly_with_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> Any:
        grads = self._hvdlite.greatest(list(grads), list(vars), self._var_key)
        return super()._overwrite_variables_directly_with_gradients(grads, vars)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        return super()._clip_gradients(self._all_ranks_gradients(list(grads)))  # type: ignore[misc]

    def _all_ranks_gradients(self, grads: list[Any]) -> list[Any]:
        refuse_distribution()
        # Keras 2 has none of these attributes.
        key, steps = getattr(self, "_var_key", id), getattr(self, "gradient_accumulation_steps", None)
        trained = [variable for variable in getattr(self, "_trainable_variables", ()) if not overwrites(variable)]
        if not steps or backend.NAME != "jax":
            return self._hvdlite(grads, trained, key)
        # With JAX, every step calls this, and only the gradients of the last of ``steps`` are applied.
        is_last = (self._iterations + 1) % steps == 0  # `iterations` counts updates
        if not backend.is_traced(is_last):  # `cond` would trace both branches, and run collectives while it does
            return self._hvdlite(grads, trained, key) if is_last else grads
        found: list[Any] = ops.cond(is_last, lambda: self._hvdlite(grads, trained, key), lambda: grads)
        return found

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of ``var`` on its rank."""
        self._hvdlite.local_variables.append(var)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = backend.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes ``optimizer`` reduce its gradients over all ranks before it applies them, and returns it.

    It keeps its class, configuration and state, so a saved model opens without hvdlite. All gradients of a step travel
    in one call, on every back end, in ``fit`` and in custom loops. ``name`` is for messages.
    ``backward_passes_per_step`` is Keras's ``gradient_accumulation_steps``: gradients of that many steps are summed
    locally, or averaged with ``average_aggregated_gradients``, and reduced and applied once.
    ``gradient_predivide_factor`` f divides gradients by f before they are summed and by size / f after it. Sparse
    gradients of TensorFlow stay sparse unless ``sparse_as_dense`` is set. ``groups``, ``num_groups`` and the devices
    are accepted for Horovod scripts: all gradients are one group. A rank outside ``process_set`` takes its steps alone.

    A `keras.optimizers.LossScaleOptimizer`, also one that ``compile`` makes of this optimizer, skips a step on all
    ranks if a gradient of any is not finite.

    Raises ValueError for invalid arguments, and HorovodInternalError before ``init``.
    """
    return PartialDistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=merged(groups, num_groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = backend.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedOptimizer` but for ``local_layers``, a layer or several, whose gradients stay on their rank.

    They are divided by the number of ranks unless ``scale_local_gradients`` is False.
    """
    layers = [local_layers] if isinstance(local_layers, keras.Layer) else list(local_layers or ())
    if not all(isinstance(layer, keras.Layer) for layer in layers):
        raise ValueError("local_layers must be Keras layers")
    _check(optimizer, backward_passes_per_step, layers, op, gradient_predivide_factor, groups, process_set)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    _accumulate(inner, backward_passes_per_step)
    reduction = GradientReduction(
        name=name or inner.name,
        op=op,
        compression=compression,
        predivide_factor=float(gradient_predivide_factor),
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        factor=1.0 if average_aggregated_gradients else float(backward_passes_per_step),
        local_layers=layers,
        scales_local=scale_local_gradients,
    )
    users = type(inner)
    # Keras writes `__class__` into a saved model, which must open without hvdlite.
    namespace = {"_hvdlite": reduction, "__class__": property(lambda self: users), "__module__": users.__module__}
    if keras_2.has_made(inner):
        namespace |= keras_2.WITHOUT_LOSS_SCALING
    else:
        _agree_on_finite()
    object.__setattr__(inner, "__class__", type(users.__name__, (Distributed, users), namespace))
    if backend.NAME == "torch":  # dynamo would trace the methods of `__class__`, not ours
        object.__setattr__(inner, "apply", outside_of_graphs(inner.apply))
    return optimizer


def reduction_of(optimizer: Any) -> GradientReduction | None:
    """Returns the reduction of a distributed optimizer, also inside of a loss scaling one; None for others."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return optimizer._hvdlite if isinstance(optimizer, Distributed) else None


def refuse_distribution() -> None:
    """Raises ValueError inside of a `keras.distribution`, which reduces gradients by itself."""
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "a keras.distribution is set, which reduces gradients by itself; use either that with the bare optimizer, "
            "or DistributedOptimizer and no keras.distribution.set_distribution()"
        )


def _check(
    optimizer: Any,
    passes: int,
    local_layers: list[Any],
    op: int,
    predivide_factor: float,
    groups: Any,
    process_set: ProcessSet,
) -> None:
    if isinstance(optimizer, str):
        raise ValueError(f"expected a Keras optimizer, got {optimizer!r}; pass keras.optimizers.get({optimizer!r})")
    if keras_2.has_made(optimizer):
        keras_2.check(optimizer, passes, local_layers)
    elif not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"expected an optimizer of Keras 3, got {type(optimizer).__module__}.{type(optimizer).__name__}"
        )
    if reduction_of(optimizer) is not None:
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if op not in (Average, Sum):
        raise ValueError(f"op {OP_NAMES.get(op, op)} is not supported by Keras optimizers; use hvd.Average or hvd.Sum")
    if isinstance(groups, int) and groups <= 0:
        raise ValueError(f"groups must be a positive number or lists of variables, got {groups}")
    check_choices(op, predivide_factor, process_set)
    refuse_distribution()


def _accumulate(optimizer: Any, passes: int) -> None:
    """Makes ``optimizer`` average the gradients of ``passes`` steps for each that it applies."""
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be positive, got {passes}")
    if passes == 1:
        return
    own = optimizer.gradient_accumulation_steps
    if own not in (None, passes):
        raise ValueError(
            f"backward_passes_per_step is {passes}, but the optimizer's gradient_accumulation_steps is {own}"
        )
    if own is None and optimizer.built:
        raise ValueError("the optimizer has been built without room to accumulate; wrap it before its first step")
    optimizer.gradient_accumulation_steps = passes


@cache
def _agree_on_finite() -> None:
    """Makes loss scaling of distributed optimizers skip the same steps on all ranks.

    `compile` adds loss scaling only after an optimizer was distributed, so this changes Keras's class.
    """
    scaled = keras.optimizers.LossScaleOptimizer
    own = scaled.check_finite

    def check_finite(self: Any, grads: Iterable[Any]) -> Any:
        finite, reduction = own(self, grads), reduction_of(self)
        return finite if reduction is None else reduction.agreed(finite)

    scaled.check_finite = check_finite
