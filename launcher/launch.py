"""Starts a job as the options want it, on hosts that are known, and runs it to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import click

from hvdlite.blackbox.format import printable
from hvdlite.errors import BadHostSpec
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.settings import Settings

from .agents.agents import Agents
from .agents.ways import Way
from .decisions.plan import Plan, wanted_hosts
from .job.execute import Execution, FailureReport
from .job.logs import Logs
from .job.preparation import Request, prepare, sketch
from .options.environment import misspelt
from .options.flags import Outcome
from .options.hosts import HostOptions
from .options.job import JobOptions, OutputOptions
from .screen.screen import Screen
from .screen.texts import describe_plan
from .spawners import ways_to
from .where.hosts import Host, own_names


def launch(
    command: tuple[str, ...],
    where: HostOptions,
    output: OutputOptions,
    environment: dict[str, str],
    outcome: Outcome,
    job: JobOptions,
    listed: Sequence[Host],
    ways: Mapping[str, Way] | None = None,
    *,
    is_dry: bool = False,
) -> int:
    """Runs the job on the hosts that are ``listed``, of which ``ways`` lead to some; returns its exit code."""
    hosts = wanted_hosts(listed, job.size, job.per_host, job.gpus_per_rank)
    request = Request(command, hosts, environment, job, where)
    identity = Job.create()
    here = own_names(hosts)
    _print_notes([*outcome.notes, *([_counted_twice(here, ", this one,")] if len(here) > 1 else [])])
    for wrong, right in misspelt(environment):
        say(f"there is no setting {wrong}; did you mean {right}?")
    if is_dry:
        plan = sketch(request, identity)
        job.readers(plan.size)
        _print_notes(_without_ranks(hosts, plan))
        for line in describe_plan(plan, os.environ, ways_to(hosts, plan.hosts, where.ssh), output.is_verbose):
            click.echo(line)
        return 0
    with Agents(where.ssh, say, ways) as agents:
        plan = prepare(request, identity, agents, say if output.is_verbose else _ignore)
        readers = job.readers(plan.size)
        idle = _without_ranks(hosts, plan)
        if ways and idle:
            raise BadHostSpec(f"{idle[0]}; start fewer nodes, or more ranks, or give each node fewer with -ppn.")
        aliases = [names for names in plan.aliases if not set(names) <= set(here)]
        _print_notes([*idle, *map(_counted_twice, aliases)])
        with (
            _logs(output.folder, plan.size) as logs,
            RendezvousServer(identity, plan.size) as server,
            _timeline(plan, identity) as plan,
        ):
            streams = sys.stdout.fileno(), sys.stderr.fileno()
            screen = Screen(*streams, os.environ, has_timestamps=output.has_timestamps, loop=agents.loop)
            plan = plan.meeting_at(server.address)
            on_failure: FailureReport | None = click.get_current_context().obj
            execution = Execution(
                plan,
                agents,
                screen,
                logs,
                readers=readers,
                grace_s=job.grace_s,
                is_verbose=output.is_verbose,
                on_failure=on_failure,
                has_met=lambda: server.was_called,
            )
            return execution.run()


def say(line: str) -> None:
    """Shows one line to the user, if anybody reads it."""
    with suppress(OSError):
        print(f"hvdrun: {printable(line)}", file=sys.stderr, flush=True)


def _ignore(line: str) -> None:
    """Ignores a message that only --verbose shows."""


def _counted_twice(names: Sequence[str], which: str = "") -> str:
    return f"{' and '.join(names)} are one machine{which} and count as {len(names)} hosts; {names[0]}:N is one host"


def _without_ranks(hosts: Sequence[Host], plan: Plan) -> list[str]:
    idle = list(dict.fromkeys(host.name for host in hosts if host.name not in plan.hosts))
    if not idle:
        return []
    return [f"no rank runs on {', '.join(idle)}: {', '.join(plan.hosts)} can take all {plan.size}"]


@contextmanager
def _logs(folder: str | None, size: int) -> Iterator[Logs | None]:
    if folder is None:
        yield None
        return
    try:
        logs = Logs(folder, size)
    except OSError as error:
        raise click.UsageError(f"--output-filename {folder} cannot be used: {error.strerror}.") from None
    try:
        yield logs
    finally:
        logs.close()


@contextmanager
def _timeline(plan: Plan, job: Job) -> Iterator[Plan]:
    """The plan with the timeline that its ranks are to record, which is served meanwhile."""
    path = Settings.read(plan.environment).timeline
    if path in ("", "DYNAMIC"):
        yield plan
        return
    from .job.timeline import Timeline  # for most jobs have none, and would start later

    try:
        served = Timeline(path, job, plan.size, say)
    except OSError as error:
        raise click.UsageError(f"the timeline {path} cannot be written: {error.strerror}.") from None
    with served:
        yield plan.recording_at(served.address)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        click.secho(f"hvdrun: {note}", err=True, dim=True, color=False if os.environ.get("NO_COLOR") else None)
