"""Answers to what Horovod's scripts ask about the build. Every function works before ``init``.

hvdlite always negotiates and moves CPU tensors without MPI or a vendor's library. Scripts that ask for ``gloo`` mean
"works without MPI", so the answer is True. The answers about CUDA's driver and NCCL describe this machine, because both
are loaded when needed. They leave the driver uninitialized, since forks come later.
"""

from __future__ import annotations

import sys

from hvdlite.cuda.presence import absence_of_gpus
from hvdlite.errors import absence_of


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
    """The version of the NCCL that hvdlite uses here, such as 22304 for 2.23.4; 0 if there is none, or a too old one.

    Loads NCCL: the framework's, if a framework is imported.
    """
    from hvdlite.planes.nccl.library import library  # most programs never ask

    return 0 if absence_of(library) else library().version


def ddl_built() -> bool:
    """Always false: there is no IBM DDL."""
    return False


def ccl_built() -> bool:
    """Always false: there is no Intel oneCCL."""
    return False


def cuda_built() -> bool:
    """True if this process seems to have a GPU: CUDA's driver can be loaded, and its files are in /dev.

    False where CUDA_VISIBLE_DEVICES hides all GPUs, or the PyTorch that is imported is one for CPUs.
    """
    from hvdlite.cuda import driver

    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is None:
        return False
    return not (absence_of_gpus() or absence_of(driver.loaded))


def rocm_built() -> bool:
    """Always false: this version takes no tensors on ROCm."""
    return False


def describe_gpus() -> dict[str, str | int]:
    """Returns the versions of CUDA and NCCL here, or the reasons for their absence.

    Initializes the driver, so it is for a process of its own.
    """
    from hvdlite.cuda import driver
    from hvdlite.planes.nccl.library import dotted, library

    without_cuda = absence_of_gpus() or absence_of(driver.library)
    without_nccl = absence_of(library)
    return {
        "cuda": "" if without_cuda else driver.version(),
        "visible_gpus": 0 if without_cuda else driver.count(),
        "without_cuda": without_cuda,
        "nccl": "" if without_nccl else dotted(library().version),
        "nccl_library": "" if without_nccl else library().path,
        "without_nccl": without_nccl,
    }
