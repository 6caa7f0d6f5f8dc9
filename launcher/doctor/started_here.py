"""What hvdrun would do if it were started here without -H, for ``hvdrun doctor --env``."""

from __future__ import annotations

from typing import Final

import click

from hvdlite.blackbox.format import printable
from hvdlite.errors import BadHostSpec
from hvdlite.launched_by.variables import Environ

from ..nodes.place import COMPLETION_INDEX, NodePlace, doubt, source_of
from ..nodes.records import key_of
from ..options.nodes import NodeOptions
from ..stream.fields import shown
from ..where.hosts import Host
from ..where.scheduled import scheduled_hosts
from .findings import Finding, Weight

NO_OPTIONS: Final = NodeOptions(None, None, None, None)
_HERE: Final = "start ranks on this host only"


def hvdrun_here(environ: Environ, node: NodeOptions = NO_OPTIONS) -> tuple[str, list[Finding]]:
    """The rest of "hvdrun here would ...", and findings about it.

    The user has given the options ``node``. What hvdrun would refuse is a problem.
    """
    findings: list[Finding] = []
    would, place = "start no job", None
    try:
        if place := node.place(environ):
            would = f"be node {place.rank} of {place.count}, as {_origins(place, environ, node)}"
            if place.count > 1:
                key_of(node.secret(environ))
            return would, []
        if text := doubt(environ):
            matter, _, advice = text.rpartition("; ")
            findings.append(Finding(Weight.WARNING, (), printable(matter), advice))
        if found := scheduled_hosts(environ):
            return f"start ranks on {_listed(found.hosts)}, {found.why}", findings
        if COMPLETION_INDEX in environ and not findings:
            return f"{_HERE}, unless it is given --nnodes and --master", [_of_pod(environ)]
    except (ValueError, BadHostSpec, click.UsageError) as error:
        text = str(error.message if isinstance(error, click.UsageError) else error)
        matter, _, advice = printable(text).rstrip(".").rpartition("; ")
        text, advice = (matter, advice) if matter else (advice, "")
        findings.append(Finding(Weight.PROBLEM, (), f"hvdrun would not start: {text}", advice))
        return f"{would}{', and could not start' if place else ''}: see below", findings
    return _HERE, findings


def _origins(place: NodePlace, environ: Environ, node: NodeOptions) -> str:
    """What decides that this is ``place``: the options, and the variables for what they leave open."""
    source, origins = source_of(environ), []
    if node.are_given:
        origins.append("its options")
    if source and None in (node.rank, node.nodes, node.master):
        names = [name for name in (source.rank, source.count, source.master, source.port) if name]
        origins.append(f"{source.name} ({', '.join(f'{name}={shown(environ[name])}' for name in names)})")
    elif node.rank is None:
        origins.append(f"{COMPLETION_INDEX}={place.rank}")
    return f"{' and '.join(origins)} {'say' if node.are_given else 'says'}"


def _of_pod(environ: Environ) -> Finding:
    key = "" if environ.get("HVDLITE_SECRET") else ", and the key of all nodes (HVDLITE_SECRET or --secret-file)"
    them = f"--nnodes and --master{key}"
    return Finding(
        Weight.NOTE,
        (),
        f"this is pod {shown(environ[COMPLETION_INDEX])} of an indexed Job ({COMPLETION_INDEX})",
        f"to make it a node of a job, give hvdrun {them}; hvdrun doctor --env takes them too",
    )


def _listed(hosts: tuple[Host, ...]) -> str:
    return ",".join(f"{host.name}:{host.slots}" if host.slots else host.name for host in hosts)
