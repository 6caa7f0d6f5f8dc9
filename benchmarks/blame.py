"""``python -m benchmarks.blame``: how often hvdrun names the slow rank, and the right cause, and how soon.

Each fault happens to one rank of a job of equal ranks several times, and a job in which nothing happens makes many
steps, in which nobody is to be named. As root, because most faults need control groups, other cores, or hosts made of
namespaces.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import click

from tests.harness.hosts import Network
from tests.harness.hosts import missing as hosts_missing
from tests.harness.slow_ranks import FAULTS, Fault, Named, SlowJob

_WITHIN_S: Final = 30.0
_HEAD: Final = (
    "| fault | runs | named | rank | cause | within 5 s or 10 steps | seconds | steps |",
    "|---|---|---|---|---|---|---|---|",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", type=click.IntRange(min=1), default=10, help="Runs of each fault.")
@click.option("--ranks", type=click.IntRange(min=2), default=3, help="Ranks of each job.")
@click.option("--steps", type=click.IntRange(min=0), default=1000, help="Steps of jobs in which nothing happens.")
@click.option("--fault", "names", multiple=True, type=click.Choice(sorted(FAULTS)), help="Only these faults.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table to a file.")
@click.option("-v", "--verbose", is_flag=True, help="Show what hvdrun said.")
def main(runs: int, ranks: int, steps: int, names: Sequence[str], markdown: Path | None, verbose: bool) -> None:
    """Lets faults happen to a rank, and prints what hvdrun says about it."""
    lines: list[str] = []
    for line in _table(runs, ranks, steps, names or list(FAULTS), verbose):
        print(line, flush=True)
        lines.append(line)
    if markdown:
        markdown.write_text("\n".join(lines) + "\n")


def _table(runs: int, ranks: int, steps: int, names: Sequence[str], verbose: bool) -> Iterator[str]:
    yield from _HEAD
    for name in names:
        fault = FAULTS[name]
        if reason := fault.missing() or (hosts_missing() if fault.is_network else ""):
            yield f"| {name} | 0: {reason} |"
            continue
        found = [_run(fault, ranks, verbose) for _ in range(runs)]
        yield _row(fault, [each for each in found if each is not None], runs, ranks - 1)
    if steps:
        for size in range(2, 5):
            yield f"| none, {steps} steps of {size} ranks | 1 | {_equal(size, steps, verbose)} | | | | | |"


def _run(fault: Fault, ranks: int, verbose: bool) -> Named | None:
    with ExitStack() as closing:
        network = closing.enter_context(Network("a", "b")) if fault.is_network else None
        job = closing.enter_context(SlowJob(ranks, fault.name, network))
        named = job.name(fault, ranks - 1, _WITHIN_S)
        job.finish()
        if verbose:
            print(named.line if named else f"nobody was named: {job.said[-500:]}", file=sys.stderr, flush=True)
        return named


def _row(fault: Fault, found: Sequence[Named], runs: int, rank: int) -> str:
    rightly = [each for each in found if each.rank == rank]
    causes = [each for each in rightly if fault.says in each.cause]
    soon = [each for each in found if each.after_s <= 5 or each.steps <= 10]
    times = (
        f"{median(each.after_s for each in found):.1f}, at most {max(each.after_s for each in found):.1f}"
        if found
        else ""
    )
    steps = f"{median(each.steps for each in found):.0f}" if found else ""
    return (
        f"| {fault.name} | {runs} | {len(found)} | {len(rightly)} | {len(causes)} | {len(soon)} | {times} | {steps} |"
    )


def _equal(ranks: int, steps: int, verbose: bool) -> int:
    with SlowJob(ranks, "none") as job:
        job.wait_for_steps(steps)
        job.finish()
        if verbose:
            print("\n".join(job.names()), file=sys.stderr, flush=True)
        return len(job.names())


if __name__ == "__main__":
    main()
