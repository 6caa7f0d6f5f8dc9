"""Horovod's `DistributedOptimizer` of TensorFlow, which is that of Keras."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.ops.adapter import Compressor
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensors.dtypes import Average
from hvdlite.training.buckets import Groups


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
    """Makes a Keras optimizer reduce its gradients over all ranks before it applies them, and returns it.

    It is `hvdlite.keras.DistributedOptimizer` with the arguments in Horovod's order for TensorFlow. Raises ValueError
    for an optimizer of TensorFlow 1.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ValueError(
            "optimizers of TensorFlow 1 are not supported; use one of keras.optimizers, or "
            "hvd.DistributedGradientTape and the optimizer as it is"
        )
    of_keras = importlib.import_module("hvdlite.keras")  # on a floor above, and only needed here
    return of_keras.DistributedOptimizer(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
