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
    Product,
    ShutDown,
    Stalled,
    Sum,
    __version__,
    barrier,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    poll,
    rank,
    shutdown,
    size,
    synchronize,
)
from hvdlite.framework import allgather_object, broadcast_object
from hvdlite.torch.broadcasting import broadcast_optimizer_state, broadcast_parameters
from hvdlite.torch.compression import Compression
from hvdlite.torch.optimizer import DistributedOptimizer
from hvdlite.torch.tensors import collectives as _collectives

allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DuplicateName",
    "HorovodInternalError",
    "HvdError",
    "Max",
    "Min",
    "Mismatch",
    "NativeUnavailable",
    "PeerLost",
    "Product",
    "ShutDown",
    "Stalled",
    "Sum",
    "__version__",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
