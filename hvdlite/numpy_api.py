"""The public names of ``hvdlite``: collectives for numpy arrays, and what every front end has."""

# ruff: noqa: F403, I001 - one statement for each module

# Before the modules below, which import it from deeper down: the frames there happen to fill one of CPython's chunks,
# and numpy's own imports would map and unmap the next chunk some 700 times.
import numpy as _numpy  # noqa: F401
from hvdlite.public_names import *
from hvdlite.public_names import __version__ as __version__
from hvdlite.compat import install_as_horovod as install_as_horovod
from hvdlite.errors import (
    FunctionFailed as FunctionFailed,
    LaunchError as LaunchError,
    WorkerFailed as WorkerFailed,
)
from hvdlite.ops.arrays import collectives as _collectives
from hvdlite.ops.memory import shared_empty as shared_empty
from hvdlite.running import run as run

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
