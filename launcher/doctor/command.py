"""``hvdrun doctor``: whether a job would run on the given hosts, how fast their network is, and what to do about it."""

from __future__ import annotations

import json
import os

import click

from ..agents.agents import Agents
from ..network.connect_test import Ask
from ..options.hosts import HostOptions, host_options
from ..options.nodes import NodeOptions, node_options
from ..where.hosts import Host
from ..where.scheduled import scheduled_hosts


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: hvdrun doctor -H node1,node2. The exit code is 0 if a job would run, else 1. In a job of another "
    "launcher: srun hvdrun doctor --env.",
)
@host_options
@click.option(
    "--env",
    "examines_environment",
    is_flag=True,
    help="Examine this process instead: what hvdrun or python would do here, which rank it is, and what is missing.",
)
@node_options
@click.option("--json", "is_json", is_flag=True, help="Write JSON instead of text.")
@click.argument("words", nargs=-1, metavar="")
def doctor(
    where: HostOptions, examines_environment: bool, node: NodeOptions, is_json: bool, words: tuple[str, ...]
) -> int:
    """Examine hosts and the network between them.

    Without -H and --hostfile these are the hosts of the job of Slurm, PBS or another scheduler that it is started in,
    or else this host alone.
    """
    if words:
        raise click.UsageError(f"hosts are named by -H: hvdrun doctor -H {','.join(words)}.")
    if examines_environment:
        if where.are_named:
            raise click.UsageError("--env examines this process, and no hosts; leave -H and --hostfile out.")
        return _examine_environment(node, is_json)
    if node.are_given or node.secret_file is not None:
        raise click.UsageError("options of nodes belong to --env: hvdrun doctor --env --nnodes N --master HOST.")
    # Imported here, for no job needs them, and every one would start later.
    from .findings import Weight, find
    from .report import as_json, describe
    from .survey import Survey, SurveyedHost, examine_hosts, examine_network

    hosts = where.listed()
    if not hosts:
        found = scheduled_hosts(os.environ)
        hosts = found.hosts if found else (Host("localhost"),)
    with Agents(where.ssh, _ignore_line) as agents:
        agents.try_to_connect(hosts)
        survey = Survey({host.name: SurveyedHost(host.name) for host in hosts})
        for name, link in agents.links.items():
            survey.hosts[name].connect_s = link.received_at - link.started
        for name, reason in agents.failures.items():
            survey.hosts[name].problem = reason
        ask: Ask = agents.ask
        examine_hosts(ask, survey)
        examine_network(ask, survey, where.interfaces, where.ports)
    findings = find(survey, os.environ)
    if is_json:
        click.echo(json.dumps(as_json(survey, findings), indent=2))
    else:
        click.echo("\n".join(describe(survey, findings)))
    return int(any(finding.weight is Weight.PROBLEM for finding in findings))


def _examine_environment(node: NodeOptions, is_json: bool) -> int:
    """Prints what hvdrun and ``init`` would make of this process's environment; returns the exit code."""
    from .report import findings_as_json, paragraphs
    from .surroundings import as_json, describe, examine, without_keys

    found = examine(os.environ, node=node)
    if is_json:
        text = json.dumps({**as_json(found), "findings": findings_as_json(found.findings)}, indent=2)
    else:
        text = "\n".join([*describe(found), "", *paragraphs(found.findings), _verdict(found.engine, found.would_start)])
    click.echo(without_keys(text.rstrip(), os.environ))
    return int(not found.would_start)


def _verdict(engine: str, would_start: bool) -> str:
    if not engine:
        return "" if would_start else "No job would start here as it was meant."
    return "init() would join this job." if would_start else "init() would not join the job that was meant."


def _ignore_line(line: str) -> None:
    """Ignores ssh's stderr: the finding quotes it if the host is unusable, else it does not matter."""
