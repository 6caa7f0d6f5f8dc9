"""Acts against a running job. Each takes a `Training`, and returns what undoes it.

An act applies the faults of `tests.harness` to certain ranks and hosts.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tests.faults.training import Training
from tests.harness import cgroups, faults
from tests.harness.hosts import Host
from tests.harness.wan import bad_line

Act = Callable[[Training], AbstractContextManager[object]]

PESTER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stranger.py")))


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


def kill_in_negotiation(rank: int, missing: int) -> Act:
    """Kills a rank while all wait for another one to submit."""

    @contextmanager
    def act(job: Training) -> Iterator[None]:
        with stop(missing)(job):
            threading.Event().wait(0.5)  # a step takes less
            job.rank(rank).kill()
        yield

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


def alter(host: str, source: str) -> Act:
    """Changes a byte of one segment in a hundred from ``source``, and TCP does not notice."""
    return lambda job: faults.corrupt(job.network[host], job.network[source])


def reset_connections(host: str) -> Act:
    """Ends one of the ranks' connections between hosts each second, at random."""
    return lambda job: _repeatedly(1.0, lambda: _reset_one(job.network[host]))


def pester(host: str, victims: str) -> Act:
    """Has strangers on ``host`` connect to all ports where ranks listen, and send what is no frame."""

    @contextmanager
    def act(job: Training) -> Iterator[None]:
        addresses = [(job.network[name].address, port) for name in victims for port in _ports(job.network[name])]
        with ExitStack() as strangers:
            for address, port in addresses:
                process = job.network[host].popen(*PESTER, address, str(port))
                strangers.enter_context(process)
            yield

    return act


def _ports(host: Host) -> list[int]:
    """The TCP ports where something other than sshd listens."""
    lines = host.check("ss", "-Hltn").splitlines()
    return sorted({int(line.split()[3].rpartition(":")[2]) for line in lines} - {22})


def _reset_one(host: Host) -> None:
    lines = host.check("ss", "-Htn", "state", "established").splitlines()
    pairs = [[end.rpartition(":")[2] for end in line.split()[2:4]] for line in lines]
    candidates = [(here, there) for here, there in pairs if "22" not in (here, there)]
    if candidates:
        here, there = random.choice(candidates)
        faults.kill_sockets(host, f"( sport = {here} and dport = {there} )")


@contextmanager
def _repeatedly(period_s: float, act: Callable[[], None]) -> Iterator[None]:
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(period_s):
            act()

    thread = threading.Thread(target=run, name="fault")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def missing_for(act: Act) -> str:
    """Names what the system lacks for an act with control groups; empty for other acts and if nothing is missing."""
    controller = {"freeze": "freezer", "starve": "cpu"}.get(act.__qualname__.partition(".")[0])
    return cgroups.missing(controller) if controller else ""
