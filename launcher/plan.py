"""What is to be started where, with which environment: decided before anything runs.

Every rank gets its numbers under hvdlite's names, Horovod's, and those that torch.distributed reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hvdlite.core.topology import Placement, place
from hvdlite.errors import BadHostSpec
from hvdlite.rendezvous.job import Job
from hvdlite.settings import Settings

from .hosts import Host, is_local


@dataclass(frozen=True, slots=True)
class Plan:
    """One job: ``placements`` in rank order, ``environment`` for all ranks and ``of_rank`` on top of it."""

    command: tuple[str, ...]
    cwd: str
    placements: tuple[Placement, ...]
    environment: Mapping[str, str]
    of_rank: tuple[Mapping[str, str], ...]

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


def place_ranks(hosts: Sequence[Host], size: int | None, cores: int) -> tuple[Placement, ...]:
    """Gives every rank its host.

    Without ``hosts`` all ranks are on this machine; without ``size`` all slots are used; a host without slots takes
    ``cores``. Raises BadHostSpec for a host that is not this machine, for too few slots, and if both are missing.
    """
    if size is None and not hosts:
        raise BadHostSpec("say how many processes to start: hvdrun -np 4 python train.py.")
    for host in hosts:
        if not is_local(host.name):
            raise BadHostSpec(
                f"host {host.name!r} is not this machine, and this version starts processes here only; "
                "use -H localhost:N."
            )
    slots = [(host.name, cores if host.slots is None else host.slots) for host in hosts]
    if size is None:
        size = sum(count for _, count in slots)
    return place(slots or [("localhost", max(size, 0))], size)


def rank_environment(placement: Placement, size: int, cores: int, base: Mapping[str, str]) -> dict[str, str]:
    """The variables that differ from rank to rank. ``base`` is what the user set; OMP_NUM_THREADS there wins."""
    numbers = {
        "RANK": placement.rank,
        "SIZE": size,
        "LOCAL_RANK": placement.local_rank,
        "LOCAL_SIZE": placement.local_size,
        "CROSS_RANK": placement.cross_rank,
        "CROSS_SIZE": placement.cross_size,
    }
    environment = {
        "HOROVOD_HOSTNAME": placement.host,
        "HVDLITE_HOSTNAME": placement.host,
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_size),
    }
    for name, number in numbers.items():
        environment |= {f"HOROVOD_{name}": str(number), f"HVDLITE_{name}": str(number)}
    if "OMP_NUM_THREADS" not in base:
        environment["OMP_NUM_THREADS"] = str(max(1, cores // placement.local_size))
    return environment


def job_environment(base: Mapping[str, str], job: Job, master_port: int) -> dict[str, str]:
    """What all ranks get: the user's environment, the job's name and key, and where torch.distributed may listen."""
    defaults = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    return {**defaults, **base, "HVDLITE_JOB": job.name, "HVDLITE_SECRET": job.secret}


def make_plan(
    command: Sequence[str],
    placements: tuple[Placement, ...],
    cores: int,
    base: Mapping[str, str],
    job: Job,
    *,
    master_port: int,
) -> Plan:
    """The plan for ``command`` on ``placements``, ``base`` being the environment that the user wants.

    Raises ValueError for a setting in it that every rank would refuse.
    """
    size = len(placements)
    of_rank = tuple(rank_environment(placement, size, cores, base) for placement in placements)
    plan = Plan(tuple(command), os.getcwd(), placements, job_environment(base, job, master_port), of_rank)
    Settings.read({**plan.environment, **plan.of_rank[0]})
    return plan
