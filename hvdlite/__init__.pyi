"""The public names, for type checkers and for `hvdlite.__getattr__`: this is their one list."""

# ruff: noqa: I001 - one statement for each module

from hvdlite.builds import (
    ccl_built as ccl_built,
    cuda_built as cuda_built,
    ddl_built as ddl_built,
    gloo_built as gloo_built,
    gloo_enabled as gloo_enabled,
    mpi_built as mpi_built,
    mpi_enabled as mpi_enabled,
    mpi_threads_supported as mpi_threads_supported,
    nccl_built as nccl_built,
    rocm_built as rocm_built,
)
from hvdlite.compat import install_as_horovod as install_as_horovod
from hvdlite.errors import (
    DuplicateName as DuplicateName,
    FunctionFailed as FunctionFailed,
    HorovodInternalError as HorovodInternalError,
    HvdError as HvdError,
    LaunchError as LaunchError,
    Mismatch as Mismatch,
    NativeUnavailable as NativeUnavailable,
    PeerLost as PeerLost,
    ShutDown as ShutDown,
    Stalled as Stalled,
    WorkerFailed as WorkerFailed,
)
from hvdlite.ops import (
    barrier as barrier,
    join as join,
    poll as poll,
    synchronize as synchronize,
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
from hvdlite.ops.objects import (
    allgather_object as allgather_object,
    broadcast_object as broadcast_object,
)
from hvdlite.process_sets import (
    ProcessSet as ProcessSet,
    add_process_set as add_process_set,
    global_process_set as global_process_set,
    remove_process_set as remove_process_set,
)
from hvdlite.running import run as run
from hvdlite.session import (
    cross_rank as cross_rank,
    cross_size as cross_size,
    init as init,
    is_homogeneous as is_homogeneous,
    is_initialized as is_initialized,
    local_rank as local_rank,
    local_size as local_size,
    rank as rank,
    shutdown as shutdown,
    size as size,
)
from hvdlite.tensors.dtypes import (
    Adasum as Adasum,
    Average as Average,
    Max as Max,
    Min as Min,
    Product as Product,
    Sum as Sum,
)
from hvdlite.version import __version__ as __version__
