"""Every collective × op × dtype × shape × set × way of calling, at 1 to 4 ranks over all planes, against the oracle.

One job runs the whole grid, or with four ranks of one plane, and over ZeroMQ, a fifth of it; what fails in it is kept
by kind, and each kind is a test.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks
from tests.harness.patience import STALLED
from tests.multiproc import calls, oracle
from tests.multiproc.calls import Call

SHAPES = [(), (0, 3), (1,), (7,), (3, 5, 2), (1003,)]
PRIME = 5  # not a divisor of the number of ops, dtypes or shapes: every fifth case has all of them
SCALES = [(1.0, 1.0), (0.5, 3.0), (1.0, 1.0), (-2.0, 1.0), (1.0, 0.3)]
KINDS = (*calls.REDUCTIONS, *calls.MOVEMENTS)
JOBS = [*((size, plane) for size in (2, 3, 4) for plane in ("shm", "ring")), (3, "zmq")]
HOSTS = ("abab", "abbb")  # the host of each rank: the hierarchical plane with two lanes and with one

Failures = dict[str, list[str]]
Case = tuple[Call, list[calls.Array], list[calls.Array]]


def grid(kind: str, size: int) -> Iterator[Call]:
    """The calls of one kind among ``size`` members."""
    parts = [((dtype, shape),) for dtype in calls.DTYPES for shape in SHAPES]
    if kind.startswith("grouped"):  # of each dtype all shapes together, and all dtypes together
        shapes = SHAPES if kind == "grouped_allreduce" else SHAPES[1:]
        parts = [tuple((dtype, shape) for shape in shapes) for dtype in calls.DTYPES]
        parts.append(tuple((dtype, (3, 2)) for dtype in calls.DTYPES))
    variants: list[dict[str, Any]] = [{}]
    if kind in calls.REDUCTIONS:
        variants = [dict(op=op) for op in calls.OPS]
    elif kind in ("alltoall", "scatter"):
        variants = [dict(has_splits=False), dict(has_splits=True)]
    for number, (part, variant) in enumerate(itertools.product(parts, variants)):
        pre, post = SCALES[number % PRIME] if kind in calls.REDUCTIONS else (1.0, 1.0)
        call = Call(kind, part, prescale=pre, postscale=post, root=number % size, seed=number, **variant)
        if calls.is_possible(call, size):
            yield call


def run_grid(step: int = 1) -> Failures:
    """Runs every ``step``-th case among all ranks, and every fifth in sets of some of them."""
    hvd.init()
    failures: Failures = defaultdict(list)
    for ranks, process_set in _sets():
        if hvd.rank() not in ranks:
            _expect_refusal(process_set)
            continue
        for kind in KINDS:
            cases = _cases(kind, ranks, step=step if process_set is hvd.global_process_set else PRIME)
            for mode in ("", "_", "_async", "_async_") if kind in calls.IN_PLACE else ("", "_async"):
                failures[kind] += _run(cases, mode, ranks, process_set)
    hvd.barrier()
    hvd.shutdown()
    return dict(failures)


def _sets() -> list[tuple[list[int], hvd.ProcessSet]]:
    """All ranks, the first and the last, all but the first, and the last alone: those of them that differ."""
    size = hvd.size()
    choices = {tuple(sorted({0, size - 1})), tuple(range(1, size)), (size - 1,)} - {(), tuple(range(size))}
    others = [hvd.add_process_set(ranks) for ranks in sorted(choices)]
    return [(list(each.ranks or ()), each) for each in (hvd.global_process_set, *others)]


def _expect_refusal(process_set: hvd.ProcessSet) -> None:
    text = f"rank {hvd.rank()} is not in process set \\[{', '.join(map(str, process_set.ranks or ()))}\\]"
    for kind in (*KINDS, "recv"):
        argument: Any = [np.ones(4)] if kind.startswith("grouped") else np.ones(4)
        peer = {"root_rank": 0} if kind in calls.ROOTED else {"rank": 0} if kind in ("send", "recv") else {}
        for mode in ("", "_async"):
            with pytest.raises(ValueError, match=text):
                getattr(hvd, kind + mode)(argument, process_set=process_set, **peer)


def _cases(kind: str, ranks: list[int], step: int) -> list[Case]:
    member, size = ranks.index(hvd.rank()), len(ranks)
    return [
        (call, calls.tensors(call, member, size), oracle.expected(call, member, size))
        for call in itertools.islice(grid(kind, size), 0, None, step)
        if calls.takes_part(call, member, size)
    ]


def _run(cases: list[Case], mode: str, ranks: list[int], process_set: hvd.ProcessSet) -> list[str]:
    """Makes all calls, asynchronous ones all at once; a line for each that went wrong."""
    started = []
    for call, given, expected in cases:
        passed = [tensor.copy() for tensor in given]
        value = calls.start(call, str(call), mode, passed, ranks, process_set)
        started.append((call, given, passed, expected, value))
    failures = []
    for call, given, passed, expected, value in started:
        try:
            result = hvd.synchronize(value) if "async" in mode else value
            oracle.assert_results(call, result, expected)
            _check_memory(mode, given, passed, result)
        except (AssertionError, hvd.HvdError) as error:
            failures.append(f"rank {hvd.rank()} in {ranks}: {mode or 'sync'}: {call}: {error}")
    return failures


def _check_memory(mode: str, given: list[Any], passed: list[Any], result: Any) -> None:
    results = result if isinstance(result, (list, tuple)) else [result]
    if mode.endswith("_") and result is not None:
        assert all(one is tensor for one, tensor in zip(results, passed, strict=True)), "not the tensor itself"
    else:
        for tensor, before in zip(passed, given, strict=True):
            assert tensor.tobytes() == before.tobytes(), "the input was changed"
            assert not any(one is not None and np.shares_memory(tensor, one) for one in results)


@cache
def _failures(size: int, plane: str, hosts: str = "") -> Failures:
    environ = {"HVDLITE_PLANE": plane, **STALLED}
    by_rank = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)}
    by_kind: Failures = defaultdict(list)
    # One plane does with four ranks what it does with three, and the ring over ZeroMQ is the same for all of them.
    step = PRIME if (size == 4 and not hosts) or plane == "zmq" else 1
    for outcome in process_ranks(size, run_grid, step, environ=environ, environ_by_rank=by_rank):
        for kind, lines in outcome.result().items():
            by_kind[kind] += lines
    return by_kind


@pytest.mark.parametrize(("size", "plane"), [(1, "auto"), *JOBS])
@pytest.mark.parametrize("kind", KINDS)
def test_every_case_of(kind: str, size: int, plane: str) -> None:
    assert _failures(size, plane)[kind] == []


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_case_on_several_hosts_of(kind: str, hosts: str) -> None:
    assert _failures(len(hosts), "auto", hosts)[kind] == []
