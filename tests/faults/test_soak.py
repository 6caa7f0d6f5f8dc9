"""Jobs of random shapes under random faults, for as long as SOAK_MINUTES says: every sum exact, nothing grows or stays.

The first line that it prints has the seed; SOAK_SEED repeats the same faults, though not the same moments.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

from tests.faults import acts
from tests.faults.training import Ended, Training, training
from tests.harness.hosts import Network
from tests.hosts.endings import still_on

LAYOUTS: Final = ("a:1,b:1", "a:2,b:2", "b:2,c:1", "a:1,b:2,c:1", "c:1,b:1,a:1")
LENGTHS: Final = (1 << 10, 1 << 20, 16 << 20)
RECOVERY_S: Final = 20.0
GROWTH_BYTES: Final = 64 << 20  # from the first steps to the last, of one rank

Chance = random.Random

# What is done, to a random rank or host of the job, and for how many seconds.
ACTS: Final[dict[str, Callable[[Chance, int, str], tuple[acts.Act, float]]]] = {
    "stop a rank": lambda chance, rank, host: (acts.stop(rank), chance.uniform(0.1, 1.5)),
    "freeze a host": lambda chance, rank, host: (acts.freeze(host), chance.uniform(0.1, 1.5)),
    "starve a rank": lambda chance, rank, host: (acts.starve(rank, chance.randrange(10, 60)), chance.uniform(1.0, 4.0)),
    "crowd the cores": lambda chance, rank, host: (acts.crowd(chance.randrange(2, 9)), chance.uniform(1.0, 4.0)),
    "lose packets": lambda chance, rank, host: (acts.lose(chance.randrange(1, 8)), chance.uniform(1.0, 4.0)),
    "take a link down": lambda chance, rank, host: (acts.link_down(host), chance.uniform(0.1, 2.0)),
    "pull a cable": lambda chance, rank, host: (acts.unplug(host), chance.uniform(0.1, 2.0)),
    "reset connections": lambda chance, rank, host: (acts.reset_connections(host), chance.uniform(1.0, 5.0)),
    "alter segments": lambda chance, rank, host: (acts.alter(host, "b" if host == "a" else "a"), 2.0),
    "send garbage": lambda chance, rank, host: (acts.pester("c", "ab"), chance.uniform(1.0, 4.0)),
}


@pytest.mark.soak
def test_random_jobs_under_random_faults(network: Network) -> None:
    minutes = float(os.environ.get("SOAK_MINUTES", "10"))
    seed = os.environ.get("SOAK_SEED", secrets.token_hex(4))
    print(f"\nSOAK_SEED={seed}, {minutes:g} minutes")
    chance, over, jobs = Chance(seed), time.monotonic() + 60 * minutes, 0
    while time.monotonic() < over:
        jobs += 1
        _run_one(network, chance, jobs)
    print(f"{jobs} jobs")


def _run_one(network: Network, chance: Chance, number: int) -> None:
    layout, length = chance.choice(LAYOUTS), chance.choice(LENGTHS)
    hosts = [spec.partition(":")[0] for spec in layout.split(",")]
    size = sum(int(spec.partition(":")[2]) for spec in layout.split(","))
    print(f"job {number}: {layout}, {length} bytes", flush=True)
    with training(network, layout, length=length) as job:
        begun = _holdings(job, size)
        for _ in range(chance.randrange(2, 8)):
            name = chance.choice(list(ACTS))
            act, seconds = ACTS[name](chance, chance.randrange(size), chance.choice(hosts))
            if acts.missing_for(act):
                continue
            print(f"  {name} for {seconds:.1f} s", flush=True)
            with act(job):
                threading.Event().wait(seconds)
            job.wait_for_steps(2, RECOVERY_S)
        _check_growth(begun, _holdings(job, size))
        if chance.random() < 0.5:
            _check_end(job.finish(), size)
        else:
            victim = chance.randrange(size)
            print(f"  kill rank {victim}", flush=True)
            with acts.kill(victim)(job):
                _check_loss(job.end(15.0), size, victim)
    assert still_on(network) == []


def _holdings(job: Training, size: int) -> list[tuple[int, int]]:
    """Bytes in memory and open descriptors of each rank."""
    return [(rank.memory_info().rss, rank.num_fds()) for rank in map(job.rank, range(size))]


def _check_growth(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    for rank, ((bytes_before, files_before), (bytes_after, files_after)) in enumerate(zip(before, after, strict=True)):
        assert bytes_after - bytes_before < GROWTH_BYTES, f"rank {rank} grew from {bytes_before} to {bytes_after} bytes"
        assert files_after <= files_before + 2, f"rank {rank} had {files_before} descriptors and has {files_after}"


def _check_end(ended: Ended, size: int) -> None:
    assert ended.code == 0, ended.said
    assert sorted(ended.reports) == list(range(size))
    assert {(report.error, report.wrong) for report in ended.reports.values()} == {("", "")}


def _check_loss(ended: Ended, size: int, victim: int) -> None:
    assert ended.code == 128 + 9, ended.said
    assert f"rank {victim} on" in ended.said
    for rank in set(range(size)) - {victim}:
        report = ended.reports[rank]
        assert (report.error, report.lost, report.wrong) == ("PeerLost", victim, ""), report
