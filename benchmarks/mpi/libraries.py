"""The MPI libraries that hvdlite can be compared with, and oneCCL, which runs over one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

DTYPES: Final = frozenset({"uint8", "int8", "int16", "int32", "int64", "float32", "float64"})
"""The dtypes that MPI reduces: those that both numpy and the MPI standard have."""


@dataclass(frozen=True)
class Library:
    """``requirement`` is the argument for pip."""

    label: str
    requirement: str
    options: tuple[str, ...] = ()
    """Options of its mpiexec that it needs to start everywhere."""
    options_if_crowded: tuple[str, ...] = ()
    """Further options for more ranks than cores."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Settings with which it is fastest on one host."""
    needs: tuple[str, ...] = ()
    """What it needs here of its own requirements, as arguments for pip; if empty, all of them are installed."""
    shim: Path | None = None
    """C++ to compile, for a library that mpi4py does not call."""
    shares: str = ""
    """The label of the library in whose virtual environment it is, if not in one of its own."""


# Collectives of MPICH through memory that the ranks share, in place of messages between pairs.
_RELEASE_GATHER: Final = {
    f"MPIR_CVAR_{op}_POSIX_INTRA_ALGORITHM": "release_gather" for op in ("ALLREDUCE", "BARRIER", "BCAST")
}

_OPEN_MPI: Final = ("openmpi>=5,<6", ("--allow-run-as-root",), ("--oversubscribe",))

LIBRARIES: Final = {
    library.label: library
    for library in (
        Library("impi", "impi-rt"),
        Library("openmpi", *_OPEN_MPI),
        # Its other collectives in shared memory: faster up to 16 KiB, and slower above.
        Library("openmpi-sm", *_OPEN_MPI, {"OMPI_MCA_coll_sm_priority": "100"}, shares="openmpi"),
        Library("mpich", "mpich>=4,<6", environ=_RELEASE_GATHER),
        Library(
            "oneccl",
            "oneccl-devel==2021.15.2",  # later ones have no CPU library that starts without a GPU
            environ={"CCL_LOG_LEVEL": "error"},
            needs=("impi-rt", "intel-cmplr-lib-rt", "tcmlib"),
            shim=Path(__file__).with_name("oneccl.cc"),
        ),
    )
}
