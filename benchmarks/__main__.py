"""``hvdrun -np N python -m benchmarks``: the benchmark of users, which can be compared with MPI here."""

import sys
from collections.abc import Sequence

from benchmarks.mpi.peers import MPI
from hvdlite.bench.cli import bench, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code."""
    return run_command(bench, "benchmarks", arguments, MPI)


if __name__ == "__main__":
    sys.exit(main())
