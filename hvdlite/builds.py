"""Answers to what Horovod's scripts ask about the build. Every function works before ``init``.

hvdlite always negotiates and moves CPU tensors the same way, without MPI or a vendor's library. Scripts that ask for
``gloo`` mean exactly that, "works without MPI", so the answer is True.
"""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """Always raises ValueError, as Horovod does where MPI is not in use."""
    raise ValueError("hvdlite does not use MPI, so the question about MPI's threads has no answer")


def mpi_enabled() -> bool:
    """Always false."""
    return False


def mpi_built() -> bool:
    """Always false: there is no MPI."""
    return False


def gloo_enabled() -> bool:
    """Always true: ranks are connected without MPI."""
    return True


def gloo_built() -> bool:
    """Always true: there are CPU collectives without MPI."""
    return True


def nccl_built() -> int:
    """Always 0, which means no NCCL."""
    return 0


def ddl_built() -> bool:
    """Always false: there is no IBM DDL."""
    return False


def ccl_built() -> bool:
    """Always false: there is no Intel oneCCL."""
    return False


def cuda_built() -> bool:
    """Always false: this version takes no tensors on CUDA."""
    return False


def rocm_built() -> bool:
    """Always false: this version takes no tensors on ROCm."""
    return False
