"""``horovod.common.basics``: the functions of ``horovod.torch`` that need no framework, as methods of one class."""

from __future__ import annotations

from typing import Any

import hvdlite
from hvdlite import builds
from hvdlite.session import known_session


class HorovodBasics:
    """Horovod's front ends make one for the path of their extension, which is ignored here."""

    Average, Sum, Adasum = hvdlite.Average, hvdlite.Sum, hvdlite.Adasum
    Min, Max, Product = hvdlite.Min, hvdlite.Max, hvdlite.Product

    init = staticmethod(hvdlite.init)
    shutdown = staticmethod(hvdlite.shutdown)
    is_initialized = staticmethod(hvdlite.is_initialized)
    rank = staticmethod(hvdlite.rank)
    size = staticmethod(hvdlite.size)
    local_rank = staticmethod(hvdlite.local_rank)
    local_size = staticmethod(hvdlite.local_size)
    cross_rank = staticmethod(hvdlite.cross_rank)
    cross_size = staticmethod(hvdlite.cross_size)
    is_homogeneous = staticmethod(hvdlite.is_homogeneous)
    mpi_threads_supported = staticmethod(builds.mpi_threads_supported)
    mpi_enabled = staticmethod(builds.mpi_enabled)
    mpi_built = staticmethod(builds.mpi_built)
    gloo_enabled = staticmethod(builds.gloo_enabled)
    gloo_built = staticmethod(builds.gloo_built)
    nccl_built = staticmethod(builds.nccl_built)
    ddl_built = staticmethod(builds.ddl_built)
    ccl_built = staticmethod(builds.ccl_built)
    cuda_built = staticmethod(builds.cuda_built)
    rocm_built = staticmethod(builds.rocm_built)

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        pass

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """The ranks of every process set by its number, for Horovod's test suites."""
        return known_session().sets.ranks_by_number()
