"""A running job of MPI ranks, one beside each rank of the benchmark, and its collectives as candidates.

Every rank of the benchmark listens on a socket of its own in a folder that only this user can enter; then rank 0 starts
mpiexec. When the benchmark ends for any reason, so do the sockets, and then the workers.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

import hvdlite as hvd
from benchmarks.mpi.environment import Unavailable, bin_folder, environ, run, shim_of
from benchmarks.mpi.libraries import Library
from hvdlite.bench.measuring.timing import Clock, Times
from hvdlite.bench.sweep import Work
from hvdlite.errors import HvdError

_START_S: Final = 60.0
_REPLY_S: Final = 120.0
_END_S: Final = 10.0
_LONGEST_NUMBER: Final = len(f"{10**12}, ")  # nanoseconds of a quarter of an hour
_FOLDERS: Final = (str(Path(hvd.__file__).parent), str(Path(__file__).parents[2]))
# The library's environment has not what importing hvdlite needs, so the worker gets a package that is only a folder.
_WORKER: Final = """
import sys, types
sys.modules["hvdlite"] = types.ModuleType("hvdlite")
sys.modules["hvdlite"].__path__ = [sys.argv[1]]
sys.path.append(sys.argv[2])
from benchmarks.mpi.worker import main
main(*sys.argv[3:])
"""
_VERSION: Final = "from mpi4py import MPI; MPI.COMM_WORLD.rank or print(MPI.Get_library_version())"


@dataclass(frozen=True)
class _Candidate:
    label: str
    job: MpiJob
    work: dict[str, Any]

    def is_right(self) -> bool:
        return self.job.ask({**self.work, "check": True}, 0).get("is_right") is True

    def block(self, length: int, warmup: int, clock: Clock) -> Times:
        reply = self.job.ask({**self.work, "length": length, "warmup": warmup}, length)
        times = np.array(reply.get("nanoseconds"), np.float64)
        if times.shape != (length,):
            raise HvdError(f"{self.label} answered with {times.size} times instead of {length}.")
        return times / 1e9

    def processor_s(self) -> float:
        return float(self.job.ask(self.work, 1)["processor_s"])


class MpiJob:
    """The MPI rank with the number of this rank, at the other end of ``connection``."""

    def __init__(self, label: str, version: str, connection: socket.socket) -> None:
        self.label = label
        self.version = version
        self._connection = connection
        self._connection.settimeout(_REPLY_S)
        self._replies = connection.makefile("rb")

    def candidate(self, work: Work) -> _Candidate:
        """Returns the candidate for ``work``. All ranks make the same one."""
        return _Candidate(self.label, self, {"op": work.op, "dtype": work.kind.dtype, "elements": work.elements})

    def ask(self, request: dict[str, Any], numbers: int) -> dict[str, Any]:
        """Returns the reply to ``request``, with at most that many ``numbers`` in it. Raises HvdError."""
        limit = 100 + numbers * _LONGEST_NUMBER
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            line = self._replies.readline(limit)
            reply = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError) as error:
            raise HvdError(f"the MPI rank of {self.label} beside rank {hvd.rank()} does not answer: {error}.") from None
        if not isinstance(reply, dict):
            raise HvdError(f"the MPI rank of {self.label} beside rank {hvd.rank()} has ended; its reason is above.")
        return reply

    def close(self) -> None:
        """Ends the MPI rank."""
        self._replies.close()
        self._connection.close()


@contextmanager
def open_mpi(library: Library) -> Iterator[MpiJob]:
    """Opens a job of ``library`` with as many ranks as this one. All ranks call it; all raise Unavailable, or none."""
    with ExitStack() as stack:
        plan: dict[str, str] = {}
        if hvd.rank() == 0:
            try:
                plan = _prepare(library, stack)
            except Unavailable as error:
                plan = {"reason": str(error)}
        plan = json.loads(_from_rank_0(json.dumps(plan)))
        if "reason" in plan:
            raise Unavailable(plan["reason"])
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(f"{plan['folder']}/{hvd.rank()}")
        listener.listen(1)
        listener.settimeout(_START_S)
        hvd.barrier()
        if hvd.rank() == 0:
            command = [*_mpiexec(library, Path(plan["bin"])), "-c", _WORKER, *_FOLDERS, plan["folder"], plan["shim"]]
            started = subprocess.Popen(
                command, env={**environ(), **library.environ}, stdin=subprocess.DEVNULL, stdout=sys.stderr
            )
            stack.callback(_end, started)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            raise HvdError(f"no MPI rank of {library.label} came to rank {hvd.rank()} in {_START_S:.0f} s.") from None
        job = MpiJob(library.label, plan["version"], connection)
        stack.callback(job.close)
        yield job


def _prepare(library: Library, stack: ExitStack) -> dict[str, str]:
    if hvd.local_size() != hvd.size():
        raise Unavailable("it is compared on one host only")
    folder = bin_folder(library)
    version = run([*_mpiexec(library, folder), "-c", _VERSION], _START_S).splitlines()[0].split(",")[0].strip(" \0")
    sockets = stack.enter_context(TemporaryDirectory(prefix="hvdlite-bench-"))
    plan = {"bin": str(folder), "version": version, "folder": sockets, "shim": ""}
    if library.shim is not None:
        plan |= {"shim": str(shim_of(folder.parent)), "version": f"{library.requirement} over {version}"}
    return plan


def _mpiexec(library: Library, folder: Path) -> list[str | Path]:
    is_crowded = hvd.size() > len(os.sched_getaffinity(0))
    options = [*library.options, *(library.options_if_crowded if is_crowded else ())]
    return [folder / "mpiexec", *options, "-n", str(hvd.size()), folder / "python", "-I"]


def _from_rank_0(text: str) -> str:
    own = text.encode() if hvd.rank() == 0 else b""
    return hvd.allgather(np.frombuffer(own, np.uint8)).tobytes().decode()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits for mpiexec, whose ranks were told to end."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
