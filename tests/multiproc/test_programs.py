"""Random programs of collectives, which every rank begins and ends in an order of its own, against the oracle.

The programs of one job use the same few names, so that what is known about a name is now right, now out of date, and
with little room for it soon forgotten.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import hvdlite as hvd
from tests.harness import process_ranks
from tests.harness.patience import STALLED
from tests.multiproc import calls, oracle
from tests.multiproc.calls import Call

KINDS = (*calls.REDUCTIONS, *calls.MOVEMENTS)
SHAPES = [(), (0,), (1,), (5,), (4, 3), (2, 0, 3), (6, 2, 2), (301,), (40_000,)]
NAMES = 12

Program = list[tuple[str, int, Call]]
"""Name, number of the process set and what is called; all in flight at once."""


def program(seed: int, length: int, sizes: Sequence[int]) -> Program:
    """A program for process sets of ``sizes`` members; every rank that builds it gets the same."""
    rng = random.Random(seed)
    drawn: Program = []
    names = rng.sample([f"tensor {number}" for number in range(NAMES)], length)
    for name in names:
        number = rng.randrange(len(sizes))
        call = _draw(rng, sizes[number])
        drawn.append((name, number, replace(call, seed=rng.randrange(1 << 30))))
    return drawn


def _draw(rng: random.Random, size: int) -> Call:
    while True:
        kind = rng.choice(KINDS)
        parts = tuple(
            (rng.choice(calls.DTYPES), rng.choice(SHAPES))
            for _ in range(rng.randint(1, 4) if kind.startswith("grouped") else 1)
        )
        call = Call(kind, parts, root=rng.randrange(size))
        if kind in calls.REDUCTIONS:
            pre, post = rng.choice([(1.0, 1.0), (1.0, 1.0), (0.5, 3.0)])
            call = replace(call, op=rng.choice(calls.OPS), prescale=pre, postscale=post)
        if kind in ("alltoall", "scatter"):
            call = replace(call, has_splits=rng.random() < 0.5)
        if calls.is_possible(call, size):
            return call


def run_programs(plan: Sequence[tuple[int, int, int]]) -> int:
    """Runs a program for each (seed, length, times); the number of results that this rank has checked."""
    hvd.init()
    others = [ranks for ranks in ([0, hvd.size() - 1], list(range(1, hvd.size()))) if 1 < len(ranks) < hvd.size()]
    process_sets = [hvd.global_process_set, *(hvd.add_process_set(ranks) for ranks in others)]
    sizes = [len(each.ranks or ()) for each in process_sets]
    checked = 0
    order = random.Random(hvd.rank())
    for seed, length, times in plan:
        drawn = program(seed, length, sizes)
        checked += sum(_run(drawn, process_sets, order) for _ in range(times))
    hvd.barrier()
    hvd.shutdown()
    return checked


def _run(drawn: Program, process_sets: Sequence[hvd.ProcessSet], order: random.Random) -> int:
    started: list[tuple[Call, list[calls.Array], Any]] = []
    for name, number, call in order.sample(drawn, len(drawn)):
        member, size = process_sets[number].rank(), process_sets[number].size()
        if member is None or size is None or not calls.takes_part(call, member, size):
            continue
        mode = order.choice(["_async", "_async_"]) if call.kind in calls.IN_PLACE else "_async"
        passed = calls.tensors(call, member, size)
        handle = calls.start(call, name, mode, passed, process_sets[number].ranks or (), process_sets[number])
        started.append((call, oracle.expected(call, member, size), handle))
    for call, expected, handle in order.sample(started, len(started)):
        hvd.poll(handle)
        try:
            oracle.assert_results(call, hvd.synchronize(handle), expected)
        except AssertionError as error:
            raise AssertionError(f"{call}: {error}") from None
    return len(started)


@settings(max_examples=8)
@given(
    size=st.integers(2, 4),
    plane=st.sampled_from(["shm", "ring"]),
    cache=st.sampled_from([0, 2, 7, 4096]),
    fusion=st.sampled_from([0, 100, 1 << 27]),
    plan=st.lists(
        st.tuples(st.integers(0, 1 << 30), st.integers(1, NAMES), st.integers(1, 3)), min_size=1, max_size=10
    ),
)
def test_random_programs(size: int, plane: str, cache: int, fusion: int, plan: list[tuple[int, int, int]]) -> None:
    environ = {
        "HVDLITE_PLANE": plane,
        "HVDLITE_CACHE_CAPACITY": str(cache),
        "HVDLITE_FUSION_THRESHOLD": str(fusion),
        **STALLED,
    }
    outcomes = process_ranks(size, run_programs, plan, environ=environ)
    assert sum(outcome.result() for outcome in outcomes) > 0
