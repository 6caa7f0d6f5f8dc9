"""Lists of hosts that a scheduler or operator has left where hvdrun was started once; they are reached by ssh.

A row of `LISTS` each. Slurm is not here: `hvdlite.launcher.where.slurm` starts agents through it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hvdlite.errors import BadHostSpec

from .hosts import Host, lines_of, parse_hosts, read_hostfile

_NAME_HOSTS: Final = "name hosts yourself with -H"


@dataclass(frozen=True, slots=True)
class HostList:
    """``of`` reads the list from the value of ``variable``; the list counts if also the ``marks`` are set."""

    name: str
    variable: str
    of: Callable[[str, str], tuple[Host, ...]]
    marks: tuple[str, ...] = ()


def list_of(environ: Mapping[str, str]) -> HostList | None:
    """The first list in ``environ``."""
    found = (each for each in LISTS if environ.get(each.variable) and all(mark in environ for mark in each.marks))
    return next(found, None)


def hosts_of(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the first list in ``environ``; none if there is no list. Raises BadHostSpec for an invalid one."""
    found = list_of(environ)
    return found.of(environ[found.variable], found.variable) if found else ()


def _host_of_each_slot(path: str, variable: str) -> tuple[Host, ...]:
    """One name on each line, as often as the host has slots."""
    return _hosts(Counter(line.split()[0] for line in _lines(path, variable)), variable)


def _queue_of_each_host(path: str, variable: str) -> tuple[Host, ...]:
    """``node1 4 all.q@node1 UNDEFINED``: name, slots, queue, processors."""
    slots: Counter[str] = Counter()
    for line in _lines(path, variable):
        name, count, *_ = [*line.split(), ""]
        slots[name] += _count(count, f"{variable}={path}, {line!r}")
    return _hosts(slots, variable)


def _names_and_counts(text: str, variable: str) -> tuple[Host, ...]:
    """``node1 4 node2 4``."""
    slots: Counter[str] = Counter()
    words = text.split()
    for name, count in zip(words[::2], [*words[1::2], ""], strict=False):
        slots[name] += _count(count, f"{variable}={text!r}")
    return _hosts(slots, variable)


def _names(text: str, variable: str) -> tuple[Host, ...]:
    """``node1 node1 node2``."""
    return _hosts(Counter(text.split()), variable)


LISTS: Final = (
    HostList("Open MPI, or the MPI Operator", "OMPI_MCA_orte_default_hostfile", read_hostfile),
    HostList("MPICH", "HYDRA_HOST_FILE", read_hostfile),
    HostList("Intel MPI", "I_MPI_HYDRA_HOST_FILE", read_hostfile),
    HostList("LSF", "LSB_DJOB_RANKFILE", _host_of_each_slot, ("LSB_JOBID",)),
    HostList("LSF", "LSB_MCPU_HOSTS", _names_and_counts, ("LSB_JOBID",)),
    HostList("LSF", "LSB_HOSTS", _names, ("LSB_JOBID",)),
    HostList("PBS", "PBS_NODEFILE", _host_of_each_slot, ("PBS_JOBID",)),
    HostList("SGE", "PE_HOSTFILE", _queue_of_each_host, ("JOB_ID",)),
)


def _hosts(slots: Mapping[str, int], variable: str) -> tuple[Host, ...]:
    if not slots:
        raise BadHostSpec(f"{variable} lists no host; {_NAME_HOSTS}.")
    return parse_hosts(",".join(f"{name}:{count}" for name, count in slots.items()), variable)


def _lines(path: str, variable: str) -> list[str]:
    return [line for line in lines_of(path, f"{variable}={path}", f"; {_NAME_HOSTS}") if line.strip()]


def _count(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadHostSpec(f"{where} has no number of slots for each host; {_NAME_HOSTS}.")
    return int(text)
