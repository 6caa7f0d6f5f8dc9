"""The command ``hvdrun stacks``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click


@click.command(
    "stacks",
    short_help="Show where the threads of a running job are.",
    epilog="A rank that runs Python reports its stacks within a second. A rank that holds the GIL in native code "
    "dumps them on a signal, if the program has left one free.",
)
@click.argument("pid", type=int, required=False)
@click.option("--rank", "ranks", type=click.IntRange(0), multiple=True, metavar="N", help="Only this one, or these.")
@click.option("--all", "shows_all", is_flag=True, help="Also threads and calls of hvdlite.")
def stacks(pid: int | None, ranks: tuple[int, ...], shows_all: bool) -> None:
    """Show where the threads of all ranks of a running job are: Python's calls, and what the kernel says they do.

    PID is the process of its hvdrun, on this host; it may be left out if you run one job here. Equal stacks are shown
    once.
    """
    # Imported here, for no job needs them, and every one would start later.
    from ..monitor.choosing import chosen
    from ..monitor.client import JobEnded

    with chosen(pid) as client:
        wanted = {"ranks": list(ranks)} if ranks else {}
        try:
            lines = client.ask("stacks", all=shows_all, **wanted)
        except JobEnded as ended:
            raise click.ClickException(str(ended)) from None
    for line in _shown(lines):
        click.echo(line)


def _shown(answers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the agents' answers, which may be anything."""
    from ..reports.stacks import INNERMOST_FIRST, as_lines, looked
    from ..stream.fields import shown

    looks, problems = [], []
    for answer in answers:
        host, ranks = shown(answer.get("host")), answer.get("answer")
        if isinstance(ranks, dict):
            looks += [looked(int(rank), host, each) for rank, each in ranks.items() if rank.isdecimal()]
        else:
            problems.append(f"{f'{host}: ' if 'host' in answer else ''}{shown(answer.get('error'))}")
    if any(thread.calls for look in looks for thread in look.threads):
        yield INNERMOST_FIRST
    yield from as_lines(sorted(looks, key=lambda look: look.rank))
    yield from problems
    if not looks and not problems:
        yield "no such rank runs"
