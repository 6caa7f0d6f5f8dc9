"""What is done to a job that runs: each act takes a `Training`, and what it returns undoes it.

Acts are made of the faults of `tests.harness`; these choose the ranks, hosts and numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.faults.training import Training
from tests.harness import cgroups, faults
from tests.harness.wan import bad_line

Act = Callable[[Training], AbstractContextManager[object]]


def kill(*ranks: int) -> Act:
    """Kills ranks, one right after the other."""

    @contextmanager
    def act(job: Training) -> Iterator[None]:
        for process in [job.rank(rank) for rank in ranks]:
            process.kill()
        yield

    return act


def stop(*ranks: int) -> Act:
    """Stops ranks with a signal, and continues them."""

    @contextmanager
    def act(job: Training) -> Iterator[None]:
        processes = [job.rank(rank) for rank in ranks]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                if process.is_running():
                    process.resume()

    return act


def freeze(host: str) -> Act:
    """Freezes all that runs on a host, as a virtual machine is paused."""
    return lambda job: cgroups.frozen(job.network[host].processes())


def starve(rank: int, percent: int) -> Act:
    """Gives a rank a share of a core."""
    return lambda job: cgroups.starved([job.rank(rank)], percent)


def crowd(count: int) -> Act:
    """Runs busy loops beside the ranks, on their cores."""

    @contextmanager
    def act(job: Training) -> Iterator[None]:
        with ExitStack() as loops:
            for _ in range(count):
                loops.enter_context(job.network["b"].popen(sys.executable, "-I", "-S", "-c", "while True: pass"))
            yield

    return act


def part(*sides: str, spares_ssh: bool = False) -> Act:
    """Cuts the network between groups of hosts."""
    which = faults.BESIDES_SSH if spares_ssh else ("",)
    return lambda job: faults.partition(job.network, *sides, which=which)


def deafen(host: str, source: str) -> Act:
    """Drops what ``source`` sends to ``host``, besides ssh, and nothing the other way."""
    return lambda job: faults.drop(job.network[host], job.network[source], faults.BESIDES_SSH)


def link_down(host: str) -> Act:
    return lambda job: faults.link_down(job.network[host])


def unplug(host: str) -> Act:
    return lambda job: faults.unplugged(job.network, host)


def lose(percent: int) -> Act:
    """Loses a share of all packets that come to host b."""
    return lambda job: faults.lose(job.network["b"], percent)


def worsen(delay_ms: float, jitter_ms: float, loss: float, duplication: float) -> Act:
    """Makes the line between hosts a and b a bad one."""
    numbers = dict(delay_ms=delay_ms, jitter_ms=jitter_ms, loss=loss, duplication=duplication)
    return lambda job: bad_line(job.network["a"], job.network["b"], **numbers)


def missing_for(act: Act) -> str:
    """What the system lacks for an act with control groups; empty for all others, and if it lacks nothing."""
    controller = {"freeze": "freezer", "starve": "cpu"}.get(act.__qualname__.partition(".")[0])
    return cgroups.missing(controller) if controller else ""
