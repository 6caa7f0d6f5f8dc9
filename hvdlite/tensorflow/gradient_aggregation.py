"""``horovod.tensorflow.gradient_aggregation``: parts of Horovod's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hvdlite.ops import Average, Compressor, ProcessSet, global_process_set
from hvdlite.tensorflow.compression import Compression
from hvdlite.tensorflow.optimizer.passes import LocalGradientAggregationHelper
from hvdlite.tensorflow.optimizer.reduction import GradientReduction
from hvdlite.training.buckets import Groups


def _make_allreduce_grads_fn(
    name: str = "",
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    groups: Groups[Any] = None,
    process_set: ProcessSet = global_process_set,
) -> GradientReduction:
    """Returns a function of gradients and their variables, which reduces them over all ranks."""
    how = compression, sparse_as_dense, op, gradient_predivide_factor, groups, process_set
    return GradientReduction(*how, scales_local=True)


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """The same with other parameters: Horovod has a class for each mode of execution."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        how = sparse_as_dense, average_aggregated_gradients, None, None, process_set, scale_local_gradients
        super().__init__(backward_passes_per_step, allreduce_func, *how)
