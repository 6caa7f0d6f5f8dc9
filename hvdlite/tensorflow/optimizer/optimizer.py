"""Horovod's `DistributedOptimizer` of TensorFlow, for optimizers of Keras and of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdlite.ops import Adasum, Average, Compressor, ProcessSet, global_process_set
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.optimizer.reduction import GradientReduction
from hvdlite.tensorflow.optimizer.tensorflow_1 import Steps, distributed
from hvdlite.training.buckets import Groups, merged


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups[Any] = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer, of Keras or of TensorFlow 1, reduce its gradients over all ranks before it applies them.

    Returns a Keras optimizer itself, as `hvdlite.keras.DistributedOptimizer` does, which has these arguments too. For
    an optimizer of TensorFlow 1, returns another one that shares its state and is of a subclass of its class. There
    ``groups`` are a number of collectives, or lists of variables that travel together; ``backward_passes_per_step``
    gradients are summed locally, or averaged with ``average_aggregated_gradients``, and reduced and applied once; and
    ``op=hvd.Adasum`` combines the steps that ranks take on their own gradients. ``name``, ``use_locking`` and the
    devices are accepted for Horovod scripts.

    Raises ValueError for invalid arguments.
    """
    together = merged(groups, num_groups)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if op == Adasum and average_aggregated_gradients:
            raise ValueError("average_aggregated_gradients does not go with op=hvd.Adasum, which reduces no gradients")
        is_adasum = op == Adasum  # its steps of local variables are not scaled
        how = compression, sparse_as_dense, op, gradient_predivide_factor, together, process_set
        reduction = GradientReduction(*how, scales_local=scale_local_gradients and not is_adasum)
        passes = backward_passes_per_step, average_aggregated_gradients
        return distributed(optimizer, Steps(reduction, is_adasum, *passes, sparse_as_dense))
    import hvdlite.keras  # the one circle of folders

    return hvdlite.keras.DistributedOptimizer(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=together,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
