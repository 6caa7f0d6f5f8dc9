"""``import hvdlite.tensorflow as hvd``: collectives for tensors of TensorFlow 2, eager and inside `tf.function`."""

try:
    import tensorflow as _tensorflow  # noqa: F401 - fails here with a reason, before the first module that uses it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "hvdlite.tensorflow needs TensorFlow; pip install 'hvdlite[tensorflow]'", name=error.name
    ) from error

# ruff: noqa: F403, I001 - one statement for each module

from importlib import import_module as _import_module
from typing import Any as _Any

from hvdlite.public.names import *
from hvdlite.public.names import __version__ as __version__
from hvdlite.public.publish import publish as _publish
from hvdlite.tensorflow.operation.autograph import leave_out_all as _leave_out_all
from hvdlite.tensorflow.collectives.transfers import (
    allgather as allgather,
    alltoall as alltoall,
    broadcast as broadcast,
    grouped_allgather as grouped_allgather,
)
from hvdlite.tensorflow.collectives.meetings import (
    barrier as barrier,
    join as join,
    local_rank_op as local_rank_op,
    local_size_op as local_size_op,
    process_set_included_op as process_set_included_op,
    rank_op as rank_op,
    size_op as size_op,
)
from hvdlite.tensorflow.collectives.reductions import (
    allreduce as allreduce,
    grouped_allreduce as grouped_allreduce,
    grouped_reducescatter as grouped_reducescatter,
    reducescatter as reducescatter,
)
from hvdlite.tensorflow.compression import Compression as Compression, Compressor as Compressor
from hvdlite.tensorflow.operation.errors import last_error as last_error
from hvdlite.tensorflow.functions import (  # type: ignore[assignment]
    BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook,
    allgather_object as allgather_object,
    broadcast_ as broadcast_,
    broadcast_global_variables as broadcast_global_variables,
    broadcast_object as broadcast_object,
    broadcast_object_fn as broadcast_object_fn,
    broadcast_variables as broadcast_variables,
)
from hvdlite.tensorflow.operation.route import know_operations as _know_operations
from hvdlite.tensorflow.optimizer.optimizer import DistributedOptimizer as DistributedOptimizer
from hvdlite.tensorflow.optimizer.tape import (
    DistributedGradientTape as DistributedGradientTape,
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)

_LATER = {"SyncBatchNormalization": "hvdlite.tensorflow.sync_batch_norm"}  # which import Keras
_HOROVODS = {  # not public, and taken from here by scripts and tests for Horovod
    "hvdlite.horovod.checks": "check_extension gpu_available split_list",
    "hvdlite.tensorflow.eager_mode": "_cache _executing_eagerly _make_subgraph refs_to_vars vars_to_refs",
    "hvdlite.tensorflow.gradient_aggregation": "LocalGradientAggregationHelper _make_allreduce_grads_fn",
    "hvdlite.horovod.tensorflow_mpi_ops": "_allreduce _grouped_allreduce _grouped_reducescatter _reducescatter "
    "check_num_rank_power_of_2 handle_average_backwards_compatibility",
}
_ELSEWHERE = _LATER | {name: module for module, names in _HOROVODS.items() for name in names.split()}
_MODULES = {
    "gradient_aggregation": "hvdlite.tensorflow.gradient_aggregation",
    "keras": "hvdlite.tensorflow.keras",
    "mpi_ops": "hvdlite.horovod.tensorflow_mpi_ops",
    "util": "hvdlite.tensorflow.eager_mode",
}
_publish(__name__, _LATER)
_leave_out_all()
_know_operations()


def __getattr__(name: str) -> _Any:
    if name in _ELSEWHERE:
        found = getattr(_import_module(_ELSEWHERE[name]), name)
    elif name in _MODULES:
        found = _import_module(_MODULES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
