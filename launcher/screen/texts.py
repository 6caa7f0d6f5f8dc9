"""Texts of hvdrun: the box about a failed rank, the plan of a dry run, the table of settings."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hvdlite.errors import ENDED
from hvdlite.settings import Settings, Start, table

from ..agent.software import examine
from ..decisions.endings import NODE_BROKE, NODE_LEFT
from ..decisions.plan import Plan
from ..decisions.supervisor import Failure
from .last_words import last_words, without_noise
from .output import Stream

_WIDTH: Final = 78
_HINTS: Final = {
    signal.SIGKILL: "possibly out of memory: see 'dmesg' on that host and lower the batch size or the number of ranks",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a full shared-memory or temporary file system",
}


def describe_failure(
    failure: Failure,
    last_lines: Sequence[str],
    log: Path | None,
    stream: Stream = Stream.STDERR,
    *,
    are_in_sight: bool = False,
    python: str = "",
    crash: Sequence[str] = (),
    done: bool = False,
    batches: int | None = None,
) -> Iterator[str]:
    """The lines of the box: the rank to blame, the reason, its last output to ``stream`` and where the rest is.

    If the reader still sees ``last_lines`` above, the box has only the end of them. ``python`` is the interpreter of
    the ranks, empty if the job runs another program. Python's report of a ``crash`` takes the place of
    ``last_lines``. If the rank to blame is ``done``, it ended with code 0, after so many ``batches`` if that is known.
    """
    culprit = failure.culprit
    if culprit and culprit.fate:
        fate = _fate(culprit.fate, batches) if done else culprit.fate
        yield f"+-- hvdrun: rank {culprit.rank} on {culprit.host} {fate} ".ljust(_WIDTH, "-")
        yield f"| rank {failure.rank} on {failure.host} {failure.reason} because of that"
        if culprit.fate.endswith(ENDED):
            is_known = "" if done else f"if rank {culprit.rank} shows no error, it was killed or finished first: "
            yield f"| hint: {is_known}make every call on all ranks, equally often,"
            yield "|   or call hvd.join() after the last one"
    else:
        yield f"+-- hvdrun: rank {failure.rank} on {failure.host} {failure.reason} ".ljust(_WIDTH, "-")
        yield from _details(failure)
    if crash:
        yield "| where it crashed:"
        yield from (f"|   {line}" for line in crash)
    elif last_lines:
        end = last_words(last_lines) if are_in_sight else without_noise(last_lines)
        yield f"| the last lines of its {stream.value}{' (more above)' if len(end) < len(last_lines) else ''}:"
        yield from (f"|   {line}" for line in end)
    if any("No module named 'horovod" in line for line in last_lines[-1:]):
        yield "| hint: 'import horovod' means hvdlite in a Python that has hvdlite, unless --no-horovod-compat is given"
    if any("Horovod is not installed" in line for line in last_lines[-1:]):  # of what chooses it unasked, if it is
        yield "| hint: hvdrun --horovod-compat makes 'import horovod' mean hvdlite wherever it is tried"
    if any("No module named 'hvdlite'" in line for line in last_lines[-1:]):  # of a module in it too, with python -m
        yield f"| hint: {python or 'the Python of that rank'} has no hvdlite; start the ranks with {sys.executable},"
        yield f"|   or install it there: {python or 'python'} -m pip install FOLDER, with hvdlite's source or wheel"
    if log is not None:
        yield f"| its log: {log}"
    yield "+".ljust(_WIDTH, "-")


def _fate(fate: str, batches: int | None) -> str:
    """What became of a rank that ended with code 0, and had this ``fate`` in the words of others."""
    if not fate.endswith(ENDED):
        return f"{fate}: it exited with code 0"
    after = "" if batches is None else f" after {batches} {'batch' if batches == 1 else 'batches'} of collectives"
    return f"exited with code 0{after}"


def _details(failure: Failure) -> Iterator[str]:
    if failure.pid is not None:
        yield f"| process {failure.pid}"
    if failure.is_oom:
        yield "| hint: lower the batch size or the number of ranks on that host; 'dmesg' there has the details"
    elif failure.signum in _HINTS:
        yield f"| hint: {_HINTS[signal.Signals(failure.signum)]}"
    elif NODE_LEFT in failure.reason or NODE_BROKE in failure.reason:
        yield "| hint: perhaps its pod was evicted, or out of memory, or somebody killed hvdrun: see the log"
        yield "|   of that node, or 'kubectl describe pod'; then start the job again on all nodes"
    if failure.last:
        yield "| what it did last:"
        yield from (f"|   {line}" for line in failure.last)


def describe_strangers(size: int, python: str, *, is_lent: bool) -> str:
    """The line about a job of ``size`` ranks that did nothing together. ``python`` is as for a failure.

    ``is_lent`` is True if ``import horovod`` may mean hvdlite in them.
    """
    checks = f"that {python or 'the Python of the ranks'} has hvdlite"
    if not is_lent:
        checks += ", and leave out --no-horovod-compat (or HVDLITE_HOROVOD_COMPAT=0)"
    return (
        f"no rank called init(), and none was seen to communicate: each of the {size} ran the whole program by itself. "
        f"To train together, a program imports hvdlite or horovod and calls init(); if yours does, check {checks}. "
        "If that is what you want, --quiet leaves this line out"
    )


def describe_plan(
    plan: Plan, inherited: Mapping[str, str], ways: Sequence[Sequence[str]], is_verbose: bool
) -> Iterator[str]:
    """The plan of a job: placement, environment without the job's key, command, and the ``ways`` to other hosts.

    The last word of each way is a program, and long; it is shown if ``is_verbose``.
    """
    yield f"{plan.size} rank(s) on {len(plan.hosts)} host(s)"
    yield ""
    yield f"{'rank':>6}  {'host':<24} {'local':>9} {'cross':>9}"
    for place in plan.placements:
        local, cross = f"{place.local_rank}/{place.local_size}", f"{place.cross_rank}/{place.cross_size}"
        yield f"{place.rank:>6}  {place.host:<24} {local:>9} {cross:>9}"
    own = {name: value for name, value in plan.environment.items() if inherited.get(name) != value}
    by_rank = {name: [environment[name] for environment in plan.of_rank] for name in plan.of_rank[0]}
    own |= {name: values[0] for name, values in by_rank.items() if len(set(values)) == 1}
    yield ""
    yield "environment of every rank, besides what it inherits:"
    yield from (f"  {name}={_quoted(name, value)}" for name, value in sorted(own.items()))
    yield ""
    yield "environment that differs, by rank:"
    for name, values in sorted(by_rank.items()):
        if name not in own:
            yield f"  {name}={' '.join(map(shlex.quote, values))}"
    yield ""
    yield f"in {plan.cwd}:"
    yield f"  {shlex.join(plan.command)}"
    if ways:
        yield ""
        yield "through:" if is_verbose else "through (--verbose shows the whole of AGENT, what the other host runs):"
        yield from (f"  {shlex.join(way if is_verbose else [*way[:-1], 'AGENT'])}" for way in ways)


def describe_settings(environment: Mapping[str, str]) -> Iterator[str]:
    """All settings by subject, with defaults and current values. Raises ValueError for an invalid value."""
    values = asdict(Start.read(environment)) | asdict(Settings.read(environment))
    for spec in table():
        if spec.begins:
            yield f"== {spec.begins}"
        value, unit = values[spec.name], f" {spec.unit}" if spec.unit else ""
        shown = "(hidden)" if spec.secret and value else f"{_text(value)}{unit}"
        marker = "" if value == spec.default else f"   (default {_text(spec.default)}{unit})"
        yield f"{' or '.join(spec.variables)} = {shown}{marker}"
        yield f"    {spec.meaning}" + (f": {', '.join(spec.choices)}" if spec.choices else "")
        if spec.name == "spin" and (wakeup_us := examine().get("wakeup_us")):
            yield f"    a wake-up takes {wakeup_us:.0f} µs on this host"


def _quoted(name: str, value: str) -> str:
    is_secret = any(spec.secret and name in spec.variables for spec in table())
    return "(hidden)" if is_secret else shlex.quote(value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return str(value) if value != "" else "(empty)"
