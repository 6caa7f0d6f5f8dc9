"""What Horovod's scripts ask about the build before they choose a way to run. Every function works before ``init``.

hvdlite has one way to negotiate and to move CPU tensors, always there, with no MPI and no vendor's library. ``gloo`` is
Horovod's name for exactly that, and scripts that ask for it mean "works without MPI", so it is answered with True.
"""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """Always raises ValueError, as Horovod does where MPI is not in use."""
    raise ValueError("hvdlite does not use MPI, so there is nothing to say about threads of MPI")


def mpi_enabled() -> bool:
    """Whether MPI connects the ranks: never."""
    return False


def mpi_built() -> bool:
    """Whether MPI was built in: never."""
    return False


def gloo_enabled() -> bool:
    """Whether ranks are connected without MPI: always."""
    return True


def gloo_built() -> bool:
    """Whether CPU collectives without MPI are there: always."""
    return True


def nccl_built() -> int:
    """The version code of NCCL, or 0 without it."""
    return 0


def ddl_built() -> bool:
    """Whether IBM's DDL was built in: never."""
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL was built in: never."""
    return False


def cuda_built() -> bool:
    """Whether tensors in CUDA memory are taken: not by this version."""
    return False


def rocm_built() -> bool:
    """Whether tensors in ROCm memory are taken: not by this version."""
    return False
