"""Tapes whose gradients are reduced over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdlite.ops import Average, Compressor, ProcessSet, global_process_set
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.optimizer.reduction import GradientReduction
from hvdlite.training.buckets import Groups, merged


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """A tape that takes over the state of another one."""

    def __init__(self, tape: Any, reduction: GradientReduction) -> None:
        self.__dict__.update(tape.__dict__)
        self._hvdlite = reduction

    def gradient(self, target: Any, sources: Any, *args: Any, use_generic_names: bool = False, **kwargs: Any) -> Any:
        """Computes the gradients and reduces them over all ranks. Like the tape's own, with Horovod's last argument."""
        return self._reduced(super().gradient(target, sources, *args, **kwargs), sources)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, *args: Any, use_generic_names: bool = False, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Returns the gradients of this rank, and what `gradient` returns, of one computation."""
        local = super().gradient(target, sources, *args, **kwargs)
        return local, self._reduced(local, sources)

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of ``source`` on its rank."""
        self._hvdlite.local.append(source)

    def _reduced(self, gradients: Any, sources: Any) -> Any:
        reduced = self._hvdlite(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups[Any] = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a tape of ``gradtape`` whose ``gradient`` is reduced over all ranks, by default to the average.

    All gradients travel in one collective, or in one for each of ``groups``: a number, or lists of variables.
    ``gradient_predivide_factor`` f divides gradients by f before they are summed, and by size / f after it. Sparse
    gradients stay sparse unless ``sparse_as_dense`` is set. A rank outside ``process_set`` keeps its own. Lists of
    variables are numbered in the order of their first reductions, for names that are the same in each step.
    """
    together = merged(groups, num_groups)
    arguments = compression, sparse_as_dense, op, gradient_predivide_factor, together, process_set
    return _DistributedGradientTape(gradtape, GradientReduction(*arguments, scale_local_gradients))


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups[Any] = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedGradientTape` but for ``local_layers``, a layer or several, whose gradients stay on their rank.

    They are divided by the number of ranks unless ``scale_local_gradients`` is False.
    """
    together = merged(groups, num_groups)
    arguments = compression, sparse_as_dense, op, gradient_predivide_factor, together, process_set
    tape = _DistributedGradientTape(gradtape, GradientReduction(*arguments, scale_local_gradients))
    is_one = local_layers is not None and not isinstance(local_layers, (list, tuple, set))
    for layer in [local_layers] if is_one else local_layers or ():
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
