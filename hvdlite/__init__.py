"""Data-parallel training that anyone starts with ``hvdrun -np N python train.py``.

``import hvdlite as hvd`` gives the collectives for numpy arrays and needs no framework; ``hvdlite.torch`` is the same
for PyTorch, with the training helpers.
"""

from hvdlite.core.dtypes import Adasum, Average, Max, Min, Product, Sum
from hvdlite.errors import (
    DuplicateName,
    HorovodInternalError,
    HvdError,
    Mismatch,
    NativeUnavailable,
    PeerLost,
    ShutDown,
    Stalled,
)
from hvdlite.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    poll,
    synchronize,
)
from hvdlite.session import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from hvdlite.version import __version__

__all__ = [
    "Adasum",
    "Average",
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
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
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
