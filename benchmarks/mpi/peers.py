"""The MPI libraries as peers of the benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.mpi.environment import Unavailable
from benchmarks.mpi.job import open_mpi
from benchmarks.mpi.libraries import LIBRARIES
from hvdlite.bench.sweep import Entrant

_MPI: Final = [label for label, library in LIBRARIES.items() if library.shim is None]
WORDS: Final = {label: [label] for label in LIBRARIES} | {"mpi": _MPI}
"""The labels that a word of ``--compare`` stands for."""


@contextmanager
def open_jobs(labels: Iterable[str]) -> Iterator[tuple[dict[str, Entrant], list[str]]]:
    """Opens jobs of these libraries, and ends them on leaving.

    Yields those that can be measured here, by label, and notes with the versions and the reasons of absences.
    """
    entrants: dict[str, Entrant] = {}
    notes: list[str] = []
    with ExitStack() as stack:
        for label in labels:
            try:
                job = stack.enter_context(open_mpi(LIBRARIES[label]))
            except Unavailable as error:
                notes.append(f"{label} is left out: {error}")
            else:
                notes.append(f"{label} is {job.version}")
                entrants[label] = job.candidate
        yield entrants, notes
