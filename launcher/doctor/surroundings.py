"""Examines what the environment says about this process as a rank, for ``hvdrun doctor --env``.

The decisions are those of ``init``: the functions called here are the ones that it calls. No key is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hvdlite.blackbox.format import printable
from hvdlite.errors import HorovodInternalError
from hvdlite.host.ancestor import started_without
from hvdlite.launched_by.detect import OF_HVDRUN, doubt, engine_of, is_explicit
from hvdlite.launched_by.table import ENGINES
from hvdlite.launched_by.variables import Environ, number
from hvdlite.rendezvous.across_hosts import appointment
from hvdlite.rendezvous.meeting import Place, launchers_job, place_of
from hvdlite.settings import Settings, Start, table

from ..options.nodes import NodeOptions
from ..stream.fields import shown
from .findings import Finding, Weight
from .started_here import NO_OPTIONS, hvdrun_here

_OURS: Final[tuple[str, ...]] = ("HVDLITE_RANK", "HVDLITE_SIZE", "HVDLITE_LOCAL_RANK", "HVDLITE_LOCAL_SIZE", OF_HVDRUN)


@dataclass(slots=True)
class Surroundings:
    """What decided which rank this process is, and what ``init`` would make of it.

    ``engine`` is empty if nothing was recognised, and ``start`` None if the environment is refused. ``variables`` are
    those that decided, and ``set_by`` is the process that set them. ``place`` and ``key`` say where the ranks meet and
    where their key comes from. ``hvdrun`` is what hvdrun would do, where that matters: outside of ranks.
    """

    engine: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    set_by: str = ""
    start: Start | None = None
    place: str = ""
    key: str = ""
    hvdrun: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def would_start(self) -> bool:
        return not any(finding.weight is Weight.PROBLEM for finding in self.findings)


def examine(environ: Environ, pid: int = 0, node: NodeOptions = NO_OPTIONS) -> Surroundings:
    """Examines ``environ``, that of process ``pid`` or by default of this one.

    ``node`` are options that hvdrun would be given.
    """
    found = _recognised(environ, pid)
    try:
        found.start = Start.read(environ, pid)
        Settings.read(environ)
        found.place, found.key = _meeting(found.start)
    except (ValueError, HorovodInternalError) as error:
        found.findings.append(_finding(Weight.PROBLEM, str(error)))
    if found.engine:
        found.findings += _of_numbers(found.start)
        found.findings += _of_others(environ, found.start)
    else:
        found.findings += _of_halves(environ)
    if not found.engine or node.are_given:
        found.hvdrun, of_hvdrun = hvdrun_here(environ, node)
        found.findings += of_hvdrun
    if text := doubt(environ):
        found.findings.append(_finding(Weight.WARNING, text))
    found.findings.sort(key=lambda finding: finding.weight)
    return found


def describe(found: Surroundings) -> Iterator[str]:
    """The lines of the report above its findings."""
    start = found.start
    if found.hvdrun:
        yield f"hvdrun here would {found.hvdrun}"
    if not found.engine:
        alone = "start alone, as a job of one rank"
        yield f"python here would {alone if start else 'be refused as a rank, see below'}"
    else:
        place = f"rank {start.rank} of {start.size}" if start else "refused as a rank, see below"
        yield f"{found.engine}: this process is {place}"
        yield f"    recognised by {', '.join(f'{name}={value}' for name, value in found.variables.items())}"
        if found.set_by:
            yield f"    set by {found.set_by}"
    if start and found.engine:
        yield f"    local rank {start.local_rank} of {start.local_size}"
        if start.job:
            yield f"    the job: {shown(start.job)}"
    if found.place:
        yield f"    ranks meet {found.place}"
        yield f"    the key: {found.key}"


def as_json(found: Surroundings) -> dict[str, Any]:
    """The report as JSON, without its findings."""
    start = found.start
    numbers = ("rank", "size", "local_rank", "local_size")
    return {
        "would_start": found.would_start,
        "hvdrun": f"would {found.hvdrun}" if found.hvdrun else None,
        "engine": found.engine or None,
        "variables": dict(found.variables),
        "set_by": found.set_by or None,
        **{name: getattr(start, name) if start else None for name in numbers},
        "job": shown(start.job) if start else None,
        "place": found.place or None,
        "key": found.key or None,
    }


def without_keys(text: str, environ: Environ) -> str:
    """``text`` with every key of ``environ`` taken out, which the user may have used as the name of a job too."""
    names = [name for spec in table() if spec.secret for name in spec.variables]
    for key in sorted({environ.get(name, "") for name in names} - {""}, key=len, reverse=True):
        text = text.replace(key, "(a key)")
    return text


def _recognised(environ: Environ, pid: int) -> Surroundings:
    engine = None if is_explicit(environ) else engine_of(environ)
    if is_explicit(environ):
        who, names = "hvdrun" if OF_HVDRUN in environ else "hvdlite's own variables", _OURS
        mark = next(name for name in (OF_HVDRUN, *_OURS) if name in environ)  # the first differs from job to job
    elif engine is not None:
        who, names, mark = engine.name, (engine.rank, engine.size, *engine.marks), engine.mark
    else:
        return Surroundings()
    variables = {name: shown(environ[name]) for name in names if name in environ}
    return Surroundings(who, variables, _setter(mark, pid, environ))


def _setter(variable: str, pid: int, environ: Environ) -> str:
    """The process that set ``variable``, by its id and the name of its program, which shows no arguments."""
    value = environ[variable] if variable == OF_HVDRUN else None  # an inner hvdrun has that of the outer one
    try:
        ancestor = started_without(variable, pid, value)
        return f"process {ancestor} ({shown(Path(f'/proc/{ancestor}/comm').read_text().strip())})"
    except OSError:  # it has ended meanwhile, or /proc is not there
        return ""


def _meeting(start: Start) -> tuple[str, str]:
    """Where the ranks meet, and where their key comes from. Raises what ``init`` would."""
    if start.local_size > start.size:
        raise ValueError(f"there cannot be {start.local_size} ranks on this host if there are {start.size} altogether")
    place = place_of(start)
    if place is Place.HOST:
        return "on this host", "rank 0 makes one for each init(), and hands it to processes of this user"
    if place is Place.LAUNCHER:
        launchers_job(start)
        return f"at {shown(start.rendezvous)}, which hvdrun serves", "hvdrun has made it, in HVDLITE_SECRET"
    if place is Place.COORDINATOR:
        where, _ = appointment(start, 0)
        if start.rank == 0:
            where.listen().close()
        return f"at {where.host} ({where.ip}), port {where.port}", "derived from HVDLITE_SECRET, which is set"
    return "", ""


def _of_numbers(start: Start | None) -> Iterator[Finding]:
    if start and start.local_rank >= start.local_size:
        yield _finding(
            Weight.WARNING,
            f"the local rank {start.local_rank} is not below the number of ranks on this host, {start.local_size}; "
            "whatever started this process contradicts itself, and hvdlite counts the ranks of a host anew",
        )


def _of_others(environ: Environ, start: Start | None) -> Iterator[Finding]:
    """Of engines further out, whose variables say something else."""
    for engine in ENGINES if start else ():
        if engine.started(environ):
            rank, size = number(environ, engine.rank), number(environ, engine.size)
            if start and (rank, size) != (start.rank, start.size):
                yield _finding(
                    Weight.NOTE,
                    f"{engine.rank}={rank} and {engine.size}={size} of {engine.name} do not count, since what started "
                    "this process inside of it says otherwise",
                )


def _of_halves(environ: Environ) -> Iterator[Finding]:
    """Of engines that say which rank this is, but not of how many. ``init`` would make it a job of one."""
    rows = {engine.rank: engine for engine in ENGINES if engine.rank in environ and engine.if_also(environ)}
    for name, engine in rows.items():
        lacking = min((row.lacking(environ) for row in ENGINES if row.rank == name), key=len)
        if engine.size in lacking:
            yield _finding(
                Weight.PROBLEM,
                f"{name}={shown(environ[name])} says which rank this is, but {' and '.join(lacking)} "
                f"{'is' if len(lacking) == 1 else 'are'} missing, so every rank would be a job of one; set all of "
                "them, or unset it",
            )


def _finding(weight: Weight, text: str) -> Finding:
    """A finding about ``text``: what is the matter, and behind its last semicolon what to do."""
    matter, _, advice = text.rpartition("; ")
    return Finding(weight, (), printable(matter or advice), printable(advice) if matter else "")
