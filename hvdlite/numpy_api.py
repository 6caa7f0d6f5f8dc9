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
from hvdlite.ops.arrays import (
    allgather as allgather,
    allgather_async as allgather_async,
    allreduce as allreduce,
    allreduce_ as allreduce_,
    allreduce_async as allreduce_async,
    allreduce_async_ as allreduce_async_,
    alltoall as alltoall,
    alltoall_async as alltoall_async,
    broadcast as broadcast,
    broadcast_ as broadcast_,
    broadcast_async as broadcast_async,
    broadcast_async_ as broadcast_async_,
    gather as gather,
    gather_async as gather_async,
    grouped_allgather as grouped_allgather,
    grouped_allgather_async as grouped_allgather_async,
    grouped_allreduce as grouped_allreduce,
    grouped_allreduce_ as grouped_allreduce_,
    grouped_allreduce_async as grouped_allreduce_async,
    grouped_allreduce_async_ as grouped_allreduce_async_,
    grouped_reducescatter as grouped_reducescatter,
    grouped_reducescatter_async as grouped_reducescatter_async,
    recv as recv,
    recv_ as recv_,
    recv_async as recv_async,
    recv_async_ as recv_async_,
    reduce as reduce,
    reduce_async as reduce_async,
    reducescatter as reducescatter,
    reducescatter_async as reducescatter_async,
    scatter as scatter,
    scatter_async as scatter_async,
    send as send,
    send_async as send_async,
)
from hvdlite.ops.memory import shared_empty as shared_empty
from hvdlite.running import run as run
