"""Plans a job before anything runs: which ranks start where, with which environment.

Every rank gets its numbers under hvdlite's names, Horovod's, and those that torch.distributed reads. Ranks of this host
inherit all of hvdrun's environment; those of another get the job's variables on top of a login's environment there.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from hvdlite.compat import FALLBACK
from hvdlite.errors import BadHostSpec
from hvdlite.launched_by.inherited import MEETINGS
from hvdlite.launched_by.numbers import numbers_of
from hvdlite.members.topology import Placement, place
from hvdlite.net.listener import UNIX
from hvdlite.rendezvous.job import Job
from hvdlite.settings import Settings, Start

from ..agent.tunnel import tunnelled
from ..where.hosts import Host, is_local, own_names

# What goes to other hosts besides what -x names.
_TRAVELLING_NAMES: Final = frozenset(
    {"PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "SLURM_CPUS_PER_TASK"}
)
_TRAVELLING_PREFIXES: Final = tuple(
    "HVDLITE_ HOROVOD_ NCCL_ OMP_ PYTHON TORCH TF_ KERAS_ XLA_ JAX_ UCX_ MASTER_".split()
)
_BOUND_TO_A_HOST: Final = frozenset({"HVDLITE_HOSTID"})


Size = int | Literal["auto"] | None
"""The number of ranks as the user gave it."""


class Resources(NamedTuple):
    """What a host has for its ranks: cores, and the GPUs that CUDA_VISIBLE_DEVICES there may name.

    Hosts with the same ``machine`` are one under several names, and have these together; empty if that is not known.
    """

    cores: int
    gpus: tuple[str, ...] = ()
    machine: str = ""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host's part of the plan: its ranks, where they run and with what.

    ``names`` are the abstract sockets on that host for the services that its ranks reach through hvdrun, ``services``
    the sockets on this host that they lead to. ``appended`` are paths that go behind those that the host has.
    """

    ranks: tuple[int, ...]
    cwd: str
    environment: Mapping[str, str]
    names: Mapping[str, str]
    services: Mapping[str, str]
    appended: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """One job: ``placements`` in rank order, ``environment`` for all ranks and ``of_rank`` on top of it.

    ``named`` are the variables that the user named with -x; ``folders`` the working directories of hosts where it is
    not ``cwd``; ``of_host`` what all ranks of a host get on top of ``environment``; ``aliases`` the names of each
    machine that has several.
    """

    command: tuple[str, ...]
    cwd: str
    placements: tuple[Placement, ...]
    environment: Mapping[str, str]
    of_rank: tuple[Mapping[str, str], ...]
    named: frozenset[str] = frozenset()
    folders: Mapping[str, str] = field(default_factory=dict)
    of_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    aliases: tuple[tuple[str, ...], ...] = ()

    @property
    def size(self) -> int:
        return len(self.placements)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts that have ranks, in order."""
        return tuple(dict.fromkeys(placement.host for placement in self.placements))

    def ranks_on(self, host: str) -> tuple[int, ...]:
        return tuple(placement.rank for placement in self.placements if placement.host == host)

    def meeting_at(self, address: str) -> Plan:
        """The same plan with the address where the ranks find each other."""
        return replace(self, environment={**self.environment, "HVDLITE_RENDEZVOUS": address})

    def recording_at(self, address: str) -> Plan:
        """The same plan with the address at which hvdrun takes the timeline."""
        return replace(self, environment={**self.environment, "HVDLITE_TIMELINE_ADDRESS": address})

    def on(self, host: str) -> HostPlan:
        """The part of ``host``."""
        environment = {**self.environment, **self.of_host.get(host, {})}
        cwd = self.folders.get(host, self.cwd)
        if is_local(host):
            return HostPlan(self.ranks_on(host), cwd, environment, {}, {})
        services = tunnelled(environment, "HVDLITE_")
        names = {service: f"hvdlite-{secrets.token_hex(8)}" for service in services}
        environment = {name: value for name, value in environment.items() if self._travels(name)}
        environment |= {service: f"{UNIX}{name}" for service, name in names.items()}
        # A user who has set none here wants the other host's.
        is_ours = environment.get("PYTHONPATH") == FALLBACK and "PYTHONPATH" not in self.named
        appended = {"PYTHONPATH": environment.pop("PYTHONPATH")} if is_ours else {}
        return HostPlan(self.ranks_on(host), cwd, environment, names, services, appended)

    def _travels(self, name: str) -> bool:
        if name in self.named:
            return True
        return (name in _TRAVELLING_NAMES or name.startswith(_TRAVELLING_PREFIXES)) and name not in _BOUND_TO_A_HOST


def wanted_hosts(
    hosts: Sequence[Host], size: Size, per_host: int | None = None, gpus_per_rank: int | None = None
) -> tuple[Host, ...]:
    """The hosts to start on: those that were named, else this machine with a slot for each rank.

    If GPUs decide how many ranks there are, hosts without slots are left to `place_ranks`. No other takes more than
    ``per_host`` ranks. Raises BadHostSpec if the number of ranks is unknown, if a user is given for this machine, where
    ranks run as the user who starts them, and if ranks at two of its names would get the same GPUs.
    """
    if gpus_per_rank is not None and len(own := own_names(hosts)) > 1:
        raise _same_gpus(own, ", this one,")
    for host in hosts:
        if host.user and is_local(host.name):
            raise BadHostSpec(f"{host.name} is this host, where ranks run as you; leave out {host.user}@.")
    if not hosts:
        if size is None and per_host is None and gpus_per_rank is None:
            raise BadHostSpec("say how many processes to start: hvdrun -np 4 python train.py, or -np auto.")
        hosts = (Host("localhost", size if isinstance(size, int) else None),)
    if per_host is None:
        return tuple(hosts)
    without = None if size == "auto" or gpus_per_rank is not None else per_host
    return tuple(replace(host, slots=min(per_host, host.slots) if host.slots else without) for host in hosts)


def _same_gpus(names: Sequence[str], which: str = "") -> BadHostSpec:
    return BadHostSpec(
        f"{' and '.join(names)} are one machine{which} and ranks at each of these names would get the same GPUs; "
        "use one name with --gpus-per-proc."
    )


def place_ranks(
    hosts: Sequence[Host],
    size: Size,
    resources: Mapping[str, Resources],
    gpus_per_rank: int | None = None,
    per_host: int | None = None,
) -> tuple[Placement, ...]:
    """Gives every rank its host. Without a number of ranks all slots are used.

    A host without slots takes as many ranks as it has GPUs for, if each gets ``gpus_per_rank`` or ``size`` is "auto",
    and else as many as it has cores, but no more than ``per_host``. Raises BadHostSpec for too few slots.
    """

    def slots_of(host: Host) -> int:
        if host.slots is not None:
            return host.slots
        there = resources[host.name]
        if gpus_per_rank is not None:
            count = len(there.gpus) // gpus_per_rank
        else:
            count = (size == "auto" and len(there.gpus)) or there.cores
        return min(count, per_host or count)

    slots = [(host.name, slots_of(host)) for host in hosts]
    total = sum(count for _, count in slots)
    if not total:
        raise BadHostSpec(f"no host has {gpus_per_rank} GPU(s) for a rank; see nvidia-smi and CUDA_VISIBLE_DEVICES.")
    return place(slots, size if isinstance(size, int) else total)


def rank_environment(
    placement: Placement,
    size: int,
    resources: Resources,
    base: Mapping[str, str],
    gpus_per_rank: int | None = None,
    neighbours: int | None = None,
) -> dict[str, str]:
    """The variables that differ from rank to rank. ``base`` is what the user set; OMP_NUM_THREADS there wins.

    So many ranks, its ``neighbours``, share the cores: by default those of the host. Raises BadHostSpec if the host
    lacks ``gpus_per_rank`` for each of its ranks.
    """
    environment = numbers_of(placement, size)
    if "OMP_NUM_THREADS" not in base:
        environment["OMP_NUM_THREADS"] = str(max(1, resources.cores // (neighbours or placement.local_size)))
    if gpus_per_rank is not None:
        if len(resources.gpus) < placement.local_size * gpus_per_rank:
            raise BadHostSpec(
                f"{placement.host} has {len(resources.gpus)} GPU(s), too few for {placement.local_size} rank(s) with "
                f"--gpus-per-proc {gpus_per_rank}; start fewer ranks there, or look at CUDA_VISIBLE_DEVICES."
            )
        first = placement.local_rank * gpus_per_rank
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(resources.gpus[first : first + gpus_per_rank])
    return environment


PORTS: Final = 1 + len(MEETINGS)
"""How many ports a job is given, if so many are free: that of torch.distributed, and those of `MEETINGS`."""


def job_environment(base: Mapping[str, str], job: Job, address: str, ports: Sequence[int]) -> dict[str, str]:
    """The variables of all ranks: the user's environment, the job's name and key, where frameworks' own modes meet."""
    host = f"[{address}]" if ":" in address else address
    defaults = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(ports[0]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **{name: f"{host}:{port}" for name, port in zip(MEETINGS, ports[1:], strict=False)},
    }
    return {**defaults, **base, "HVDLITE_JOB": job.name, "HVDLITE_SECRET": job.secret}


def make_plan(
    command: Sequence[str],
    placements: tuple[Placement, ...],
    resources: Mapping[str, Resources],
    base: Mapping[str, str],
    job: Job,
    *,
    gpus_per_rank: int | None = None,
    ports: Sequence[int],
    named: Collection[str] = (),
    of_host: Mapping[str, Mapping[str, str]] | None = None,
    folders: Mapping[str, str] | None = None,
) -> Plan:
    """The plan for ``command`` on ``placements``; ``base`` is the environment that the user wants.

    ``resources`` are by host, and ``ports`` are free on the first one; see `Plan` for the rest. Raises ValueError
    for a setting in ``base`` that ranks would refuse, and BadHostSpec if ranks lack GPUs of their own.
    """
    size, of_host = len(placements), of_host or {}
    machines = [resources[placement.host].machine or placement.host for placement in placements]
    aliases = _aliases({placement.host: machine for placement, machine in zip(placements, machines, strict=True)})
    if aliases and gpus_per_rank is not None:
        raise _same_gpus(aliases[0])
    counts = Counter(machines)
    of_rank = tuple(
        rank_environment(placement, size, resources[placement.host], base, gpus_per_rank, counts[machine])
        for placement, machine in zip(placements, machines, strict=True)
    )
    address = of_host.get(placements[0].host, {}).get("HVDLITE_ADDRESS", "127.0.0.1")
    environment = job_environment(base, job, address, ports)
    where = frozenset(named), folders or {}, of_host, aliases
    plan = Plan(tuple(command), os.getcwd(), placements, environment, of_rank, *where)
    for part in (Start, Settings):
        part.read({**plan.environment, **plan.of_rank[0]})
    return plan


def _aliases(machine_of: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    names: dict[str, list[str]] = {}
    for host, machine in machine_of.items():
        names.setdefault(machine, []).append(host)
    return tuple(tuple(several) for several in names.values() if len(several) > 1)
