"""The report of ``hvdrun doctor``: a paragraph for each host, a table of pairs, the findings; or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from ..network.attempts import Attempt
from ..network.candidates import Interface
from .findings import Finding, Weight
from .survey import Survey, SurveyedHost

_MAX_COLUMNS: Final = 8
_WIDTH: Final = 100
_INDENT: Final = "    "


def describe(survey: Survey, findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of the report."""
    for host in survey.hosts.values():
        yield from _host(host)
        yield ""
    if survey.attempts:
        measured = dict.fromkeys(one.candidate.host for one in survey.attempts)
        hosts = [host for host in survey.hosts if host in measured]
        yield from _table(survey.attempts, hosts) if len(hosts) <= _MAX_COLUMNS else _slowest(survey.attempts)
        yield ""
    yield from paragraphs(findings)
    problems = sum(finding.weight is Weight.PROBLEM for finding in findings)
    yield f"{problems} problem(s): a job would not run." if problems else "A job would run on these hosts."


def paragraphs(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of the findings, with an empty one behind each."""
    for finding in findings:
        about = f"{', '.join(finding.hosts)}: " if finding.hosts else ""
        yield from _wrapped(f"{finding.weight.name.lower()}: {about}{finding.text}", "")
        yield from (f"{_INDENT}{line}" for line in finding.details)
        yield from _wrapped(f"-> {finding.advice}", _INDENT) if finding.advice else ()
        yield ""


def as_json(survey: Survey, findings: Sequence[Finding]) -> dict[str, Any]:
    """The report as JSON; figures are in the units of their names, sizes in bytes."""
    return {
        "would_run": not any(finding.weight is Weight.PROBLEM for finding in findings),
        "hosts": {host.name: _host_as_json(host) for host in survey.hosts.values()},
        "pairs": [
            {"from": one.dialler, "to": one.candidate.host, "rtt_us": one.rtt_us, "mb_per_s": one.mb_per_s}
            for one in survey.attempts
        ],
        "findings": findings_as_json(findings),
    }


def findings_as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as JSON."""
    return [{**asdict(finding), "weight": finding.weight.name.lower()} for finding in findings]


def _host(host: SurveyedHost) -> Iterator[str]:
    reached = f"connected in {host.connect_s:.2f} s" if host.is_usable else "cannot be used, see below"
    yield f"{host.name}: {reached}"
    if facts := host.machine:
        memory = f"{_size(facts['free_memory'])} of {_size(facts['memory'])} memory free"
        yield f"    {facts['kernel']}, {facts['cores']} core(s), load {facts['load']:.2f}, {memory}"
        files = "any number of" if facts["files"] is None else str(facts["files"])
        locked = "any" if facts["locked_memory"] is None else _size(facts["locked_memory"])
        yield f"    {files} open files, {locked} locked memory, {_size(facts['shm'])} in /dev/shm"
        if facts["gpus"]:
            gpus = [f"{gpu['name']} ({gpu['memory_mib']} MiB, driver {gpu['driver']})" for gpu in facts["gpus"]]
            yield f"    GPUs: {', '.join(f'{gpus.count(gpu)} × {gpu}' for gpu in dict.fromkeys(gpus))}"
    if "hvdlite" in (found := host.software):
        frameworks = "".join(f", {name} {version}" for name, version in found["frameworks"].items())
        yield f"    hvdlite {found['hvdlite']} (ABI {found['abi']}), Python {found['python']}{frameworks}"
    if found.get("cuda"):
        yield f"    CUDA {found['cuda']}, {'NCCL ' + found['nccl'] if found['nccl'] else 'no NCCL'}"
    if found.get("wakeup_us"):
        yield f"    a wake-up takes {found['wakeup_us']:.0f} µs"
    if host.network:
        for one in host.network.interfaces:
            if one.addresses and not one.is_loopback:
                yield f"    {_interface(one)}{_use(host, one)}"


def _interface(one: Interface) -> str:
    speed = f", {one.speed_mbps / 1000:g} Gbit/s" if one.speed_mbps else ""
    down = "" if one.is_up else ", down"
    return f"{one.name}: {', '.join(map(str, one.addresses))}{speed}, MTU {one.mtu}{down}"


def _use(host: SurveyedHost, one: Interface) -> str:
    is_used = host.address is not None and host.address.interface == one.name
    return f"  <- used: {host.address.address}" if host.address and is_used else ""


def _table(attempts: Sequence[Attempt], hosts: Sequence[str]) -> Iterator[str]:
    yield "From the host of a row to that of a column: round trip and bandwidth"
    cells = {(one.dialler, one.candidate.host): _figures(one) for one in attempts}
    rows = [["", *hosts], *([host, *(cells.get((host, other), "-") for other in hosts)] for host in hosts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "    " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))


def _slowest(attempts: Sequence[Attempt]) -> Iterator[str]:
    yield f"The slowest of {len(attempts)} pairs that were measured: round trip and bandwidth"
    for one in sorted(attempts, key=lambda one: one.mb_per_s or 0.0)[:_MAX_COLUMNS]:
        yield f"    {one.dialler} to {one.candidate.host}: {_figures(one)}"


def _figures(one: Attempt) -> str:
    return one.problem or f"{one.rtt_us or 0:.0f} µs {one.mb_per_s or 0:.0f} MB/s"


def _host_as_json(host: SurveyedHost) -> dict[str, Any]:
    interfaces: list[Mapping[str, Any]] = []
    for one in host.network.interfaces if host.network else ():
        interfaces.append({**one._asdict(), "addresses": [str(address) for address in one.addresses]})
    return {
        "problem": host.problem,
        "connect_s": round(host.connect_s, 3),
        "clock_ahead_s": round(host.clock_ahead_s, 4),
        "machine": host.machine,
        "software": host.software,
        "interfaces": interfaces,
        "address": host.address.address if host.address else None,
        "interface": host.address.interface if host.address else None,
    }


def _wrapped(line: str, indent: str) -> list[str]:
    later = indent + "   "
    return textwrap.wrap(line, _WIDTH, initial_indent=indent, subsequent_indent=later, break_on_hyphens=False)


def _size(count: int) -> str:
    size, units = float(count), iter(("bytes", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    return f"{size:.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"
