"""The MPI libraries that hvdlite can be compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hvdlite.errors import HvdError

DTYPES: Final = frozenset({"uint8", "int8", "int16", "int32", "int64", "float32", "float64"})
"""What MPI reduces: the types that both numpy and the MPI standard have."""


class Unavailable(HvdError):
    """A library cannot be measured here; the others can."""


@dataclass(frozen=True)
class Library:
    """``requirement`` is what pip installs."""

    label: str
    requirement: str
    options: tuple[str, ...] = ()
    """Options of its mpiexec without which it would not start everywhere."""
    options_if_crowded: tuple[str, ...] = ()
    """More of them for more ranks than cores."""


LIBRARIES: Final = {
    library.label: library
    for library in (
        Library("impi", "impi-rt"),
        Library("openmpi", "openmpi>=5,<6", ("--allow-run-as-root",), ("--oversubscribe",)),
    )
}
