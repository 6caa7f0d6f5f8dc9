"""Which node of a job this is, as the options or the environment say.

What starts one process on each node says so in the environment: a row of `SOURCES` each. An indexed Job of Kubernetes
says only which node this is; how many there are, and where node 0 is, are options then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from hvdlite.members.topology import MAX_RANKS

DEFAULT_PORT: Final = 29400
_MASTER: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
)
COMPLETION_INDEX: Final = "JOB_COMPLETION_INDEX"
_NEEDS: Final = {
    "rank": "--node-rank, the number of this node from 0",
    "count": "--nnodes, how many there are",
    "master": "--master, the name of node 0's host",
}

Environ = Mapping[str, str]
Slots = int | Literal["auto"] | None
"""How many ranks a node takes: a number, one for each GPU or else core, or what the user says or the cores."""


class Master(NamedTuple):
    """The host of node 0, without the brackets of an IPv6 address, and the port where it listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Node ``rank`` of ``count``; node 0 listens at ``port`` of ``host``. ``slots`` is what the environment says."""

    rank: int
    count: int
    master: Master
    slots: Slots = None


def parse_master(text: str, label: str = "--master") -> Master:
    """The place that ``HOST`` or ``HOST:PORT`` names. Raises ValueError that names ``label``."""
    match = _MASTER.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"] or DEFAULT_PORT) < 65536:
        raise ValueError(f"{label} {text!r} is not HOST, HOST:PORT or [IPV6]:PORT.")
    return Master(match["ipv6"] or match["host"], int(match["port"] or DEFAULT_PORT))


def place_of(rank: int | None, count: int | None, master: Master | None, environ: Environ) -> NodePlace | None:
    """The place of this node; None if nothing says that it is one of several.

    What the user has not given comes from the environment. Raises ValueError for what is missing or invalid.
    """
    source = source_of(environ)
    found = source.read(environ) if source else None
    if rank is None and count is None and master is None:
        return found
    if rank is None and found is None and COMPLETION_INDEX in environ:
        rank = _number(environ, COMPLETION_INDEX)
    given = {
        "rank": rank if rank is not None else found and found.rank,
        "count": count if count is not None else found and found.count,
        "master": master or (found and found.master),
    }
    if lacking := [_NEEDS[name] for name, value in given.items() if value is None]:
        raise ValueError(f"a node of a job also needs {' and '.join(lacking)}.")
    place = NodePlace(**given, slots=found.slots if found else None)  # type: ignore[arg-type]
    _check(place)
    return place


@dataclass(frozen=True, slots=True)
class Source:
    """What starts nodes: ``rank``, ``count``, ``master`` and ``port`` are variables; without ``port`` it is ours.

    ``slots`` reads the number of ranks from the environment. All variables that are named have to be set.
    """

    name: str
    rank: str
    count: str
    master: str
    port: str
    slots: Callable[[Environ], Slots]

    def lacking(self, environ: Environ) -> list[str]:
        """The variables of this source that the environment does not have."""
        return [name for name in (self.rank, self.count, self.master, self.port) if name and not environ.get(name)]

    def read(self, environ: Environ) -> NodePlace:
        """The place of this node. Raises ValueError that names the variable that is wrong."""
        host, *_ = [*environ[self.master].split(), ""]
        port = _number(environ, self.port) if self.port else DEFAULT_PORT
        master = parse_master(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", self.master)
        place = NodePlace(_number(environ, self.rank), _number(environ, self.count), master, self.slots(environ))
        _check(place)
        return place


def source_of(environ: Environ) -> Source | None:
    """The first source whose variables ``environ`` has."""
    return next((source for source in SOURCES if not source.lacking(environ)), None)


def doubt(environ: Environ) -> str:
    """A warning if ``environ`` says that there are several nodes, but not which of them this is; else empty."""
    if source_of(environ) is None:
        for source in SOURCES:
            if environ.get(source.count) and environ[source.count] != "1":
                lacking = source.lacking(environ)
                return (
                    f"{source.count}={environ[source.count]} of {source.name} says that there are several nodes, "
                    f"but {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing, so hvdrun starts "
                    "a job of its own on each; give it --node-rank, --nnodes and --master"
                )
    return ""


def _slots_of_pet(environ: Environ) -> Slots:
    text = environ.get("PET_NPROC_PER_NODE", "")
    if text in ("auto", "gpu"):
        return "auto"
    return None if text in ("", "cpu") else _number(environ, "PET_NPROC_PER_NODE")


def _slots_of_skypilot(environ: Environ) -> Slots:
    name = "SKYPILOT_NUM_GPUS_PER_NODE"
    return (_number(environ, name) or None) if environ.get(name) else None


SOURCES: Final = (
    # torchrun's own options as variables: "python elastic training"
    Source(
        "Kubeflow Trainer", "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT", slots=_slots_of_pet
    ),
    Source(
        "SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "", slots=_slots_of_skypilot
    ),
)  # fmt: skip


def _number(environ: Environ, name: str) -> int:
    text = environ[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        advice = "; a job of hvdlite has the same nodes from start to end" if name == "PET_NNODES" else ""
        raise ValueError(f"{name}={text!r} must be a whole number{advice}.")
    return int(text)


def _check(place: NodePlace) -> None:
    if not 0 < place.count <= MAX_RANKS:
        raise ValueError(f"a job has from 1 to {MAX_RANKS} nodes, and not {place.count}.")
    if place.rank >= place.count:
        raise ValueError(f"there is no node {place.rank} among {place.count}; nodes are numbered from 0.")
