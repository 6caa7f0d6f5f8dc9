"""The MPI libraries that hvdlite can be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


# Collectives of MPICH through memory that the ranks share, in place of messages between pairs.
_RELEASE_GATHER: Final = {
    f"MPIR_CVAR_{op}_POSIX_INTRA_ALGORITHM": "release_gather" for op in ("ALLREDUCE", "BARRIER", "BCAST")
}

LIBRARIES: Final = {
    library.label: library
    for library in (
        Library("impi", "impi-rt"),
        Library("openmpi", "openmpi>=5,<6", ("--allow-run-as-root",), ("--oversubscribe",)),
        Library("mpich", "mpich>=4,<6", environ=_RELEASE_GATHER),
    )
}
