"""The public names that every front end has, whatever its tensors are; each begins with all of them."""

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
from hvdlite.errors import (
    DuplicateName as DuplicateName,
    HorovodInternalError as HorovodInternalError,
    HvdError as HvdError,
    Mismatch as Mismatch,
    NativeUnavailable as NativeUnavailable,
    PeerLost as PeerLost,
    ShutDown as ShutDown,
    Stalled as Stalled,
)
from hvdlite.public import elastic as elastic
from hvdlite.ops import (
    barrier as barrier,
    join as join,
    poll as poll,
    synchronize as synchronize,
)
from hvdlite.ops.objects import (
    allgather_object as allgather_object,
    broadcast_object as broadcast_object,
)
from hvdlite.public.process_sets import (
    ProcessSet as ProcessSet,
    add_process_set as add_process_set,
    global_process_set as global_process_set,
    remove_process_set as remove_process_set,
)
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
from hvdlite.ops import (
    Adasum as Adasum,
    Average as Average,
    Max as Max,
    Min as Min,
    Product as Product,
    Sum as Sum,
)
from hvdlite.public.timelines import start_timeline as start_timeline, stop_timeline as stop_timeline
from hvdlite.version import __version__ as __version__
