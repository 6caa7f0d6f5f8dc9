"""``import hvdlite.torch as hvd``: collectives for CPU torch tensors, and what trains a model with them."""

try:
    import torch as _torch  # noqa: F401 - the reason is told here, before the first module that uses it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("hvdlite.torch needs PyTorch; pip install 'hvdlite[torch]'", name=error.name) from error

from hvdlite import (
    Adasum,
    Average,
    DuplicateName,
    HorovodInternalError,
    HvdError,
    Max,
    Min,
    Mismatch,
    NativeUnavailable,
    PeerLost,
    ProcessSet,
    Product,
    ShutDown,
    Stalled,
    Sum,
    __version__,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    synchronize,
)
from hvdlite.ops.objects import allgather_object, broadcast_object
from hvdlite.torch.broadcasting import broadcast_optimizer_state, broadcast_parameters
from hvdlite.torch.collectives.compiled import barrier
from hvdlite.torch.collectives.operators import HAS_OPERATORS as _HAS_OPERATORS
from hvdlite.torch.collectives.operators import register as _register
from hvdlite.torch.collectives.sparse import sparse_allreduce_async
from hvdlite.torch.collectives.tensors import collectives as _collectives
from hvdlite.torch.compression import Compression, Compressor
from hvdlite.torch.memory import shared_empty
from hvdlite.torch.optimizer import DistributedOptimizer
from hvdlite.torch.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm
from hvdlite.untraced import leave_out_all as _leave_out_all

allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_
gather = _collectives.gather
gather_async = _collectives.gather_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
recv = _collectives.recv
recv_ = _collectives.recv_
recv_async = _collectives.recv_async
recv_async_ = _collectives.recv_async_
reduce = _collectives.reduce
reduce_async = _collectives.reduce_async
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
scatter = _collectives.scatter
scatter_async = _collectives.scatter_async
send = _collectives.send
send_async = _collectives.send_async

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "DuplicateName",
    "HorovodInternalError",
    "HvdError",
    "Max",
    "Min",
    "Mismatch",
    "NativeUnavailable",
    "PeerLost",
    "ProcessSet",
    "Product",
    "ShutDown",
    "Stalled",
    "Sum",
    "SyncBatchNorm",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "convert_sync_batchnorm",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gather",
    "gather_async",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "recv",
    "recv_",
    "recv_async",
    "recv_async_",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "shared_empty",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]

if _HAS_OPERATORS:
    _register(_collectives)
_leave_out_all()
