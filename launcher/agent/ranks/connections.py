"""Looks whether the ranks of this host communicate in ways that are not hvdlite's, so that hvdrun can say if none did.

A rank *ran alone* if a Python of it ran for two seconds, and there was no sign that the ranks of its host know of each
other. Signs are a black box that a rank has begun, a library of MPI in the memory of a process, a device of InfiniBand,
a socket that listens for other hosts (as a server of torch.distributed, TensorFlow, JAX or Dask does), a TCP connection
between two ranks or with a port where hvdrun lets ranks meet, and a job inside the job. If a process cannot be looked
at, nothing is known, which counts as a sign.

A job that uses hvdlite is hardly looked at: the first look comes after two seconds, the others at growing distances,
and the first sign ends them. A look reads the list of processes (20 µs each), and of each process of a rank its
environment, its files and its memory map (0.6 ms with PyTorch); if they have sockets, also the host's TCP connections
(some milliseconds). What is over before a look sees it goes unnoticed, except connections with the ports where ranks
meet: the kernel lists those for a minute after their end.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from hvdlite.blackbox import format as blackbox
from hvdlite.host.ancestor import environ_of
from hvdlite.host.proc import stat_of
from hvdlite.host.processes import processes
from hvdlite.launched_by.inherited import MEETINGS

from .workers import Worker

_LEAST_S: Final = 2.0  # that Python runs; a shorter program is hardly meant to train
_GROWTH: Final = 0.25  # of the time until the next look, with the time since the start
_MOST_S: Final = 60.0
_MOST_PROCESSES: Final = 256  # of a look, which nothing else of the agent goes on beside; ranks have the first ids
_AGAIN_S: Final = 1.0  # between two looks at connections, when many ranks end
_MOST_DEEP: Final = 64  # ancestors of a process: ids may be used again while the list is read
_PYTHON: Final = ("python", "pypy")
_MPI: Final = re.compile(rb"/lib(?:mpi|mpich|pmix|prrte|open-rte)(?:[-_][-\w.]+)?\.so")  # of a vendor, or of a wheel
_ALONE: Final = re.compile(rb"/mca_ess_singleton\.so")  # of Open MPI, in a process that no mpirun has started
_INFINIBAND: Final = "/dev/infiniband/"
_LISTENS: Final = "0A"
_IPV4_IN_IPV6: Final = "0000000000000000FFFF0000"
_LOOPBACK: Final = re.compile(r"[0-9A-F]{6}7F|0{24}01000000")
_JOB: Final = "HVDLITE_JOB"


_End = tuple[str, str]
"""An address and a port, in hexadecimal digits."""


class _Tcp(NamedTuple):
    """A row of ``/proc/net/tcp``."""

    local: _End
    remote: _End
    state: str
    inode: str


class Connections:
    """Looks at the workers of this host that have a black box. ``least_s`` is how long a Python runs to count."""

    def __init__(self, least_s: float = _LEAST_S) -> None:
        self._least_s = least_s
        self._workers: dict[int, tuple[Worker, blackbox.Memory]] = {}  # by rank
        self._ran: set[int] = set()  # ranks that have run Python for long enough
        self._ports: set[str] = set()  # where ranks may meet
        self._began = 0.0
        self._due = math.inf
        self._meetings_due = -math.inf
        self._has_sign = False

    def begin(self, worker: Worker, memory: blackbox.Memory, now: float) -> None:
        """Looks at ``worker`` too, from `least_s` after ``now`` on, the monotonic time."""
        self._workers[worker.rank] = worker, memory
        self._began, self._due = now, now + self._least_s

    def look(self, now: float) -> None:
        """Looks, if it is time and there is something left to find out."""
        if now < self._due or self._has_sign:
            return
        self._due = now + min(_GROWTH * (now - self._began), _MOST_S)
        try:
            self._has_sign = any(_is_begun(memory) for _, memory in self._workers.values()) or self._find_sign()
        except OSError:  # it is not shown, such as a process of another user
            self._has_sign = True

    def end(self, rank: int, now: float) -> bool:
        """Forgets the worker of ``rank``, which has ended. True if it ran alone, as far as is known by ``now``."""
        _, memory = self._workers.pop(rank)
        self._has_sign = self._has_sign or _is_begun(memory)
        if rank in self._ran and not self._has_sign and now >= self._meetings_due:
            self._meetings_due = now + _AGAIN_S
            with suppress(OSError):
                self._has_sign = any(map(self._is_of_meeting, _tcp()))
        return rank in self._ran and not self._has_sign

    def _find_sign(self) -> bool:
        jobs: set[str] = set()
        sockets: dict[str, int] = {}  # the ranks that hold them, by inode
        for pid, rank in islice(self._owners(), _MOST_PROCESSES):
            try:
                environment = environ_of(pid)
                self._look_at_python(pid, rank)
                held = _files_of(pid)
                memory_map = Path(f"/proc/{pid}/maps").read_bytes()
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
            jobs.add(environment.get(_JOB, ""))
            self._ports.update(_ports(environment))
            is_mpi = _MPI.search(memory_map) and not _ALONE.search(memory_map)
            if is_mpi or any(name.startswith(_INFINIBAND) for name in held):
                return True
            sockets |= {name[8:-1]: rank for name in held if name.startswith("socket:[")}
        return len(jobs - {""}) > 1 or (bool(sockets) and self._are_connected(sockets))

    def _owners(self) -> Iterator[tuple[int, int]]:
        """The processes of the ranks: those of a worker's session, and all that descend from one."""
        ranks = {worker.process.pid: rank for rank, (worker, _) in self._workers.items()}
        found = {process.pid: process for process in processes()}
        for pid in found:
            ancestor = pid
            for _ in range(_MOST_DEEP):
                if (process := found.get(ancestor)) is None:
                    break
                if process.session in ranks:
                    yield pid, ranks[process.session]
                    break
                ancestor = process.parent

    def _look_at_python(self, pid: int, rank: int) -> None:
        if rank not in self._ran and os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(_PYTHON):
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - stat_of(pid).started_s
            if age_s >= self._least_s:
                self._ran.add(rank)

    def _are_connected(self, rank_of: Mapping[str, int]) -> bool:
        """True if a socket of ``rank_of`` listens for other hosts, or is connected with one of another rank."""
        ranks: dict[tuple[_End, _End], int] = {}
        for row in _tcp():
            if self._is_of_meeting(row):
                return True
            if (rank := rank_of.get(row.inode)) is None:
                continue
            if row.state == _LISTENS and not _LOOPBACK.fullmatch(row.local[0]):
                return True
            ranks[row.local, row.remote] = rank
        return any(ranks.get((remote, local), rank) != rank for (local, remote), rank in ranks.items())

    def _is_of_meeting(self, row: _Tcp) -> bool:
        return row.local[1] in self._ports or row.remote[1] in self._ports


def _is_begun(memory: blackbox.Memory) -> bool:
    return blackbox.look(memory) is not None


def _ports(environment: Mapping[str, str]) -> Iterator[str]:
    """The ports where the ranks of other libraries meet, as ``/proc/net/tcp`` writes them."""
    for name in ("MASTER_PORT", *MEETINGS):
        port = environment.get(name, "").rpartition(":")[2]
        if port.isdecimal():
            yield f"{int(port):04X}"


def _files_of(pid: int) -> list[str]:
    """What the descriptors of ``pid`` are."""
    folder = f"/proc/{pid}/fd"
    names = []
    for descriptor in os.listdir(folder):
        with suppress(FileNotFoundError):  # it was closed
            names.append(os.readlink(f"{folder}/{descriptor}"))
    return names


def _tcp() -> Iterator[_Tcp]:
    """The TCP sockets of this host, and its connections of the last minute."""
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open(f"/proc/net/{name}") as file:
            next(file, "")
            for line in file:
                _, local, remote, state, *rest = line.split()
                yield _Tcp(_end(local), _end(remote), state, rest[5])


def _end(text: str) -> _End:
    address, _, port = text.partition(":")
    return address.removeprefix(_IPV4_IN_IPV6), port
