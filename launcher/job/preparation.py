"""Checks everything about a job that can be checked before one of its processes runs.

Agents are connected on all hosts at once; every host must fit, have the working directory (or receive a copy of it) and
be reachable from the others. Only then is there a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hvdlite.errors import BadHostSpec, CannotStart
from hvdlite.launched_by.inherited import MEETINGS
from hvdlite.members.topology import Placement
from hvdlite.rendezvous.job import Job

from ..agent.answers import free_ports
from ..agents.agents import Agents
from ..agents.sync import copy_folder
from ..decisions.of_python import target_of
from ..decisions.plan import PORTS, Plan, Resources, make_plan, place_ranks
from ..network.candidates import network_environment
from ..network.connect_test import choose_addresses
from ..options.hosts import HostOptions
from ..options.job import JobOptions
from ..stream.hello import Hello
from ..stream.questions import FreePorts, IsFolder, IsThere
from ..where.hosts import Host, is_local

_HERE: Final = "127.0.0.1"
_LATER: Final = "chosen-at-the-start"


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request: ranks of ``command`` on ``hosts``, as the options ``job`` and ``where`` say."""

    command: Sequence[str]
    hosts: Sequence[Host]
    environment: Mapping[str, str]
    job: JobOptions
    where: HostOptions

    def place(self, resources: Mapping[str, Resources]) -> tuple[Placement, ...] | None:
        """The placement of all ranks, or None if the ``resources`` of a host without slots are not known."""
        if any(host.slots is None and host.name not in resources for host in self.hosts):
            return None
        job = self.job
        return place_ranks(self.hosts, job.size, resources, job.gpus_per_rank, job.per_host)


def sketch(request: Request, job: Job) -> Plan:
    """The plan as far as it is known without connecting to any host. Raises BadHostSpec for invalid hosts."""
    known = _here(request)
    placements = request.place(known)
    if placements is None:
        unknown = next(host.name for host in request.hosts if host.slots is None and host.name not in known)
        raise BadHostSpec(
            f"--dry-run connects to no host, so the cores and GPUs of {unknown} are unknown; write {unknown}:N."
        )
    slots: Counter[str] = Counter()
    for host in request.hosts:
        slots[host.name] += host.slots or 1
    assumed = {
        name: Resources(count, (_LATER,) * count * (request.job.gpus_per_rank or 0)) for name, count in slots.items()
    }
    ports = free_ports(_HERE, None, PORTS)
    plan = make_plan(
        request.command,
        placements,
        assumed | known,
        request.environment,
        job,
        gpus_per_rank=request.job.gpus_per_rank,
        ports=ports,
        named=request.job.named,
    )
    if len(plan.hosts) == 1:
        return plan
    later = dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "HVDLITE_ADDRESS", *MEETINGS), _LATER)
    return replace(plan, environment={**plan.environment, **later, **request.environment})


def prepare(request: Request, job: Job, agents: Agents, report: Callable[[str], None]) -> Plan:
    """Connects the agents of all hosts that get ranks, and returns the plan. ``report`` reports progress in lines.

    Raises CannotStart naming the host, and BadHostSpec, with nothing started but agents.
    """
    placements = request.place(_here(request))
    used = {host.name for host in request.hosts} if placements is None else {place.host for place in placements}
    agents.connect([host for host in request.hosts if host.name in used])
    resources = {name: _resources(hello) for name, hello in agents.hellos.items()}
    placements = placements or request.place(resources)
    assert placements is not None
    hosts = tuple(dict.fromkeys(place.host for place in placements))
    folders = _folders(request, agents, hosts, report)
    _check_script(request.command, agents, hosts, folders)
    of_host = _networks(request, agents, hosts, report) if len(hosts) > 1 else {}
    first = hosts[0]
    address = of_host[first]["HVDLITE_ADDRESS"] if of_host else _HERE
    allowed = (request.where.ports[0], request.where.ports[-1]) if request.where.ports and of_host else None
    ports = agents.ask({first: FreePorts(address, allowed, PORTS)})[first]
    if not isinstance(ports, list) or not ports or any(type(port) is not int for port in ports):
        raise CannotStart(first, "its agent found no free port.")
    return make_plan(
        request.command,
        placements,
        resources,
        request.environment,
        job,
        gpus_per_rank=request.job.gpus_per_rank,
        ports=ports,
        named=request.job.named,
        of_host=of_host,
        folders=folders,
    )


def _here(request: Request) -> dict[str, Resources]:
    """The resources of this host, by each name that it has among those of the request."""
    here = _resources(Hello.describe())
    return {host.name: here for host in request.hosts if is_local(host.name)}


def _resources(hello: Hello) -> Resources:
    return Resources(hello.cores, tuple(filter(None, hello.gpus.split(","))), hello.machine)


def _folders(request: Request, agents: Agents, hosts: Sequence[str], report: Callable[[str], None]) -> dict[str, str]:
    """The working directories of hosts that have it elsewhere."""
    remote, cwd = [host for host in hosts if agents.links[host].is_remote], Path.cwd()
    if request.job.syncs:
        return copy_folder(agents, remote, cwd, report) if remote else {}
    for host, has_it in agents.ask(dict.fromkeys(remote, IsFolder(str(cwd)))).items():
        if has_it is not True:
            raise CannotStart(host, f"there is no folder {cwd}; use --sync, or the same path everywhere.")
    return {}


def _check_script(command: Sequence[str], agents: Agents, hosts: Sequence[str], folders: Mapping[str, str]) -> None:
    """Raises CannotStart if the script that Python is to run is not on another host."""
    script = target_of(command).script
    if not script:
        return
    remote = [host for host in hosts if agents.links[host].is_remote]
    paths = {host: str(Path(folders.get(host, Path.cwd()), script)) for host in remote}
    for host, is_there in agents.ask({host: IsThere(path) for host, path in paths.items()}).items():
        if is_there is not True:
            advice = (
                "git would not commit it, so --sync left it out" if host in folders else "use --sync, or the same path"
            )
            raise CannotStart(host, f"there is no file {paths[host]}; {advice}.")


def _networks(
    request: Request, agents: Agents, hosts: Sequence[str], report: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """The variables with each host's address for the ranks of other hosts; none for a single host."""
    if all(is_local(host) for host in hosts):
        return {}
    chosen = choose_addresses(agents.ask, hosts, wanted=request.where.interfaces, ports=request.where.ports)
    for host, candidate in chosen.items():
        report(f"the others reach {host} at {candidate or f'{_HERE}, for all hosts are one machine'}")
    return {
        host: network_environment(candidate, request.where.interfaces, request.environment)
        for host, candidate in chosen.items()
    }
