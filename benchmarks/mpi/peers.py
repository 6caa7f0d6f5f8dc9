"""The MPI libraries as peers of the benchmark."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.mpi.job import open_mpi
from benchmarks.mpi.libraries import DTYPES, LIBRARIES
from hvdlite.bench.peers import Peer

MPI: Final = {label: Peer("MPI", DTYPES, partial(open_mpi, library)) for label, library in LIBRARIES.items()}
"""The peers, by label."""
