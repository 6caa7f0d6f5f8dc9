"""What hvdrun would make of an environment, if it were started there without -H, for ``hvdrun doctor --env``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hvdlite.errors import BadHostSpec
from hvdlite.launched_by.variables import Environ

from ..agents.fields import printable, shown
from ..allocation import allocation_of
from ..hostlists import hosts_of, list_of
from ..nodes.place import COMPLETION_INDEX, doubt, source_of
from ..nodes.records import key_of
from .findings import Finding, Weight

_KEY: Final = "HVDLITE_SECRET, or --secret-file"


def as_node_or_launcher(environ: Environ) -> Iterator[Finding]:
    """Says that hvdrun is a node of a job there, or starts ranks on hosts that it was given; nothing if neither."""
    try:
        if source := source_of(environ):
            place = source.read(environ)
            names = [name for name in (source.rank, source.count, source.master, source.port) if name]
            said = ", ".join(f"{name}={shown(environ[name])}" for name in names)
            needs = ""
            if place.count > 1 and (secret := environ.get("HVDLITE_SECRET")):
                key_of(secret.strip())
            elif place.count > 1:
                needs = f"give it the key of all nodes: {_KEY}"
            text = f"hvdrun would be node {place.rank} of {place.count} here, as {source.name} says ({said})"
            yield Finding(Weight.NOTE, (), text, needs)
        elif allocation := allocation_of(environ):
            hosts = ",".join(f"{host.name}:{host.slots}" for host in allocation.hosts())
            text = f"hvdrun would start ranks on {hosts}, through srun, as job {allocation.job} of Slurm says"
            yield Finding(Weight.NOTE, (), text, "")
        elif found := list_of(environ):
            hosts = ",".join(f"{host.name}:{host.slots}" if host.slots else host.name for host in hosts_of(environ))
            text = f"hvdrun would start ranks on {hosts}, over ssh, as {found.name} says ({found.variable})"
            yield Finding(Weight.NOTE, (), text, "")
        elif text := doubt(environ):
            matter, _, advice = text.rpartition("; ")
            yield Finding(Weight.WARNING, (), printable(matter), advice)
        elif COMPLETION_INDEX in environ:
            text = f"this is pod {shown(environ[COMPLETION_INDEX])} of an indexed Job ({COMPLETION_INDEX})"
            needs = f"to make it a node of a job, give hvdrun --nnodes, --master, and the key of all nodes: {_KEY}"
            yield Finding(Weight.NOTE, (), text, needs)
    except (ValueError, BadHostSpec) as error:
        yield Finding(Weight.WARNING, (), f"hvdrun would start no job here: {str(error).rstrip('.')}", "")
