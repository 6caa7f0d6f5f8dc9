"""The kernel's counters of a process, its control groups and its host: sums that only grow.

Each file stays open and is read by one system call: a process takes three calls, and one or two for each of its control
groups; the host takes four. Sums that a system does not show are missing. ``root`` is the top of the file system, or of
a recorded one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from hvdlite.host import cgroups
from hvdlite.host.proc import parse_stat

Sums = dict[str, float]

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_MOST_BYTES: Final = 64 << 10  # /proc/stat of a large host may be longer: the processors come first
_FULL_BYTES: Final = 3 << 10  # some files give out a page at a time, in whole lines
_MICRO, _NANO = 1e-6, 1e-9
_STOPPED: Final = "T"


class _File:
    """A file whose contents change. It reads as empty if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def is_there(self) -> bool:
        return self._descriptor is not None

    def read(self) -> str:
        data = b""
        if self._descriptor is not None:
            with suppress(OSError):
                while piece := os.pread(self._descriptor, _MOST_BYTES, len(data)):
                    data += piece
                    if len(piece) < _FULL_BYTES or len(data) >= _MOST_BYTES:
                        break
        return data.decode(errors="replace")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Groups:
    """The control groups that the text of a ``cgroup`` file names, and their sums since this was made."""

    def __init__(self, top: Path, text: str) -> None:
        processor, memory = (list(cgroups.groups(controller, top, text)) for controller in ("cpu", "memory"))
        self._throttled = _files(group / "cpu.stat" for group in processor)
        self._reclaimed = _files(group / name for group in memory for name in ("memory.events.local", "memory.failcnt"))
        self._pressure = _files(group / "memory.pressure" for group in memory)
        self._before = self._read()

    def read(self) -> Sums:
        return {name: value - self._before.get(name, 0.0) for name, value in self._read().items()}

    def _read(self) -> Sums:
        sums: Sums = {}
        for file in self._throttled:
            table = _table(file.read())
            _add(sums, "throttled_s", table.get("throttled_usec", 0) * _MICRO + table.get("throttled_time", 0) * _NANO)
            _add(sums, "throttles", table.get("nr_throttled", 0))
        for file in self._reclaimed:
            text = file.read()
            table = _table(text)
            _add(sums, "reclaims", int(text) if text.strip().isdigit() else table.get("high", 0) + table.get("max", 0))
        for file in self._pressure:
            for line in file.read().splitlines():
                if line.startswith("some "):
                    _add(sums, "memory_s", int(line.rpartition("total=")[2]) * _MICRO)
        return sums

    def close(self) -> None:
        for file in (*self._throttled, *self._reclaimed, *self._pressure):
            file.close()


class ProcessCounters:
    """Reads the sums of process ``pid``: counters of `hvdlite.metrics.table`, by name.

    Beside them are ``is_stopped``, 1 while a signal has stopped it, and ``processor``, where its main thread ran last.
    Sums of control groups begin with this object, and follow the process to other groups.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        proc = root / "proc" / str(pid)
        self._stat = _File(proc / "stat")
        self._main = _File(proc / "task" / str(pid) / "schedstat")
        self._top = root / "sys" / "fs" / "cgroup"
        self._cgroup = _File(proc / "cgroup")
        self._named = self._cgroup.read()
        self._groups = _Groups(self._top, self._named)
        self._earlier: Sums = {}  # of the groups that it was in before

    def read(self) -> Sums:
        """The sums; empty if the process has ended."""
        stat = parse_stat(self._stat.read())
        if stat is None:
            return {}
        sums: Sums = {
            "cpu_s": stat.cpu_s,
            "system_s": stat.system_s,
            "minor_faults": stat.minor_faults,
            "major_faults": stat.major_faults,
            "is_stopped": stat.state == _STOPPED,
            "processor": stat.processor,
        }
        if len(words := self._main.read().split()) == 3:
            sums |= {"run_s": int(words[0]) * _NANO, "delay_s": int(words[1]) * _NANO, "slices": int(words[2])}
        return sums | self._of_groups()

    def _of_groups(self) -> Sums:
        sums = dict(self._earlier)
        for name, value in self._groups.read().items():
            _add(sums, name, value)
        named = self._cgroup.read()
        if named and named != self._named:  # somebody has moved it
            self._groups.close()
            self._named, self._groups, self._earlier = named, _Groups(self._top, named), sums
        return sums

    def close(self) -> None:
        self._groups.close()
        for file in (self._stat, self._main, self._cgroup):
            file.close()


class HostCounters:
    """Reads the sums of this host: counters of `hvdlite.metrics.table`, by name, but ``steal_s.N`` of processor N."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._stat = _File(root / "proc" / "stat")
        self._vmstat = _File(root / "proc" / "vmstat")
        # Of the network that this process is in; a link to self is none of another process, if that is recorded.
        self._net = {name: _File(root / "proc" / "net" / name) for name in ("snmp", "netstat")}
        self._frequencies = root / "sys" / "devices" / "system" / "cpu"
        self._fastest: dict[int, float] = {}

    def read(self) -> Sums:
        """The sums."""
        sums: Sums = {}
        for line in self._stat.read().splitlines():
            name, *values = line.split()
            if not name.startswith("cpu"):
                break
            if name != "cpu" and len(values) > 7:
                sums[f"steal_s.{name.removeprefix('cpu')}"] = int(values[7]) * _TICK_S
        pages = _table(self._vmstat.read())
        if "pswpin" in pages:
            sums["swapped_in"] = pages["pswpin"]
        sent = {**_columns(self._net["snmp"].read(), "Tcp:"), **_columns(self._net["netstat"].read(), "TcpExt:")}
        if "TCPTimeouts" in sent:
            sums["timeouts"] = sent["TCPTimeouts"] + sent.get("TCPLossProbes", 0)
        if "RetransSegs" in sent:
            sums["resent"] = sent["RetransSegs"]
        return sums

    def slowness(self, processor: int) -> float | None:
        """The part of the highest frequency of ``processor`` that it lacks now; None if that is not shown."""
        folder = self._frequencies / f"cpu{processor}" / "cpufreq"
        if processor not in self._fastest:
            self._fastest[processor] = _number(folder / "cpuinfo_max_freq")
        fastest = self._fastest[processor]
        return max(0.0, 1 - _number(folder / "scaling_cur_freq") / fastest) if fastest else None

    def close(self) -> None:
        for file in (self._stat, self._vmstat, *self._net.values()):
            file.close()


def processors_of(pid: int) -> frozenset[int]:
    """The processors that process ``pid`` may use; none if it has ended."""
    with suppress(OSError):
        return frozenset(os.sched_getaffinity(pid))
    return frozenset()


def steal_of(sums: Mapping[str, float], processors: Collection[int]) -> float | None:
    """The mean of the sums ``steal_s.N`` of ``processors``; None if there are none."""
    found = [sums[name] for number in processors if (name := f"steal_s.{number}") in sums]
    return sum(found) / len(found) if found else None


def _files(paths: Iterator[Path]) -> list[_File]:
    return [file for path in paths if (file := _File(path)).is_there]


def _add(sums: Sums, name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value


def _table(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _columns(text: str, protocol: str) -> dict[str, int]:
    """Of a file with a line of names and a line of numbers for each protocol."""
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith(protocol)]
    return dict(zip(rows[0], map(int, rows[1]), strict=False)) if len(rows) == 2 else {}


def _number(path: Path) -> float:
    with suppress(OSError, ValueError):
        return float(path.read_text())
    return 0.0
