"""Ranks that want different things under one name: all of them hear which, on new names and on known ones.

The next collective works, also one of the same name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks

Call = Callable[[bool, hvd.ProcessSet, str], Any]
Row = tuple[str, str, str, Call]


def rows(first: int, last: int) -> Iterator[Row]:
    """What can differ: a title, the text of most ranks and of the last one, and a call, told whether it is the last.

    ``first`` and ``last`` are members of the set, by their numbers in the job.
    """
    reductions = {
        "allreduce": hvd.allreduce,
        "reducescatter": hvd.reducescatter,
        "reduce": lambda tensor, **keywords: hvd.reduce(tensor, first, **keywords),
        "grouped_allreduce": lambda tensor, **keywords: hvd.grouped_allreduce([np.ones(2), tensor], **keywords),
        "grouped_reducescatter": lambda tensor, **keywords: hvd.grouped_reducescatter([tensor], **keywords),
    }
    rooted: dict[str, Any] = {"broadcast": hvd.broadcast, "reduce": hvd.reduce, "gather": hvd.gather}
    ragged = {
        "allgather": hvd.allgather,
        "alltoall": lambda tensor, **keywords: hvd.alltoall(
            tensor, splits=[0] * keywords["process_set"].size(), **keywords
        ),
        "gather": lambda tensor, **keywords: hvd.gather(tensor, first, **keywords),
        "scatter": lambda tensor, **keywords: hvd.scatter(tensor, first, **keywords),
        "grouped_allgather": lambda tensor, **keywords: hvd.grouped_allgather([tensor], **keywords),
    }
    broadcast = {"broadcast": lambda tensor, **keywords: hvd.broadcast(tensor, first, **keywords)}

    def row(title: str, ours: Any, theirs: Any, make: Callable[[Any], tuple[Any, Any, dict[str, Any]]]) -> Row:
        def call(is_last: bool, process_set: hvd.ProcessSet, name: str) -> Any:
            function, arguments, keywords = make(is_last)
            return function(*arguments, name=name, process_set=process_set, **keywords)

        return title, str(ours), str(theirs), call

    for kind, function in {**reductions, **ragged, **broadcast}.items():
        yield row(f"{kind} dtype", "float64", "int32", lambda odd, f=function: (f, [np.ones(3, "di"[odd])], {}))
    for kind, function in {**reductions, **broadcast}.items():
        yield row(f"{kind} shape", [3, 2], [3, 4], lambda odd, f=function: (f, [np.ones((3, 2 + 2 * odd))], {}))
        yield row(f"{kind} shape", [3], [3, 1], lambda odd, f=function: (f, [np.ones((3,) + (1,) * odd)], {}))
    for kind, function in ragged.items():
        yield row(
            f"{kind} shape after the first dimension",
            [2],
            [4],
            lambda odd, f=function: (f, [np.ones((3 + odd, 2 + 2 * odd))], {}),
        )
        yield row(f"{kind} number of dimensions", 1, 3, lambda odd, f=function: (f, [np.ones((3,) + (1, 1) * odd)], {}))
    for kind, function in reductions.items():
        yield row(f"{kind} reduce op", "Sum", "Max", lambda odd, f=function: (f, [np.ones(3)], {"op": 1 + 3 * odd}))
        for factor in ("prescale_factor", "postscale_factor"):
            yield row(
                f"{kind} {factor}", 1.0, 0.5, lambda odd, f=function, key=factor: (f, [np.ones(3)], {key: 1 - odd / 2})
            )
    yield row("allreduce reduce op", "Average", "Adasum", lambda odd: (hvd.allreduce, [np.ones(3)], {"op": 2 * odd}))
    for kind, function in {**rooted, "scatter": hvd.scatter}.items():
        yield row(
            f"{kind} root rank",
            first,
            last,
            lambda odd, f=function: (f, [np.ones(3)], {"root_rank": (first, last)[odd]}),
        )
    by_kind: dict[str, Any] = {
        "allreduce": lambda **keywords: hvd.allreduce(np.ones(6), **keywords),
        "allgather": lambda **keywords: hvd.allgather(np.ones(6), **keywords),
        "reducescatter": lambda **keywords: hvd.reducescatter(np.ones(6), **keywords),
        "alltoall": lambda **keywords: hvd.alltoall(np.ones(6), **keywords),
        "broadcast": lambda **keywords: hvd.broadcast(np.ones(6), first, **keywords),
        "reduce": lambda **keywords: hvd.reduce(np.ones(6), first, **keywords),
        "gather": lambda **keywords: hvd.gather(np.ones(6), first, **keywords),
        "scatter": lambda **keywords: hvd.scatter(np.ones(6), first, **keywords),
    }
    for one, other in itertools.permutations(by_kind, 2):
        yield row(f"{one} and {other} operation", one, other, lambda odd, p=(one, other): (by_kind[p[odd]], [], {}))


def _disagree(members: list[int]) -> dict[str, list[str]]:
    """What each row is refused with: under a new name, again, under a known one, and one known as something else."""
    hvd.init()
    is_last = hvd.rank() == members[-1]
    process_set = hvd.global_process_set
    if len(members) < hvd.size():
        process_set = hvd.add_process_set(members)
    texts: dict[str, list[str]] = {}
    for number, (title, *_, call) in enumerate(rows(members[0], members[-1])):
        if hvd.rank() not in members:
            continue
        name = f"{number}: {title}"
        texts[name] = [_refused(call, is_last, process_set, name), _refused(call, is_last, process_set, name)]
        for _ in range(2):
            call(False, process_set, name)
        texts[name].append(_refused(call, is_last, process_set, name))
        np.testing.assert_array_equal(hvd.allreduce(np.ones(2), name=name, process_set=process_set), 1)
        texts[name].append(_refused(call, is_last, process_set, name))
        call(True, process_set, name)
    hvd.barrier()
    hvd.shutdown()
    return texts


def _refused(call: Call, is_last: bool, process_set: hvd.ProcessSet, name: str) -> str:
    with pytest.raises(hvd.Mismatch) as caught:
        call(is_last, process_set, name)
    return str(caught.value)


def _listed(ranks: list[int], value: str) -> str:
    return f"ranks {', '.join(map(str, ranks))} have {value}" if len(ranks) > 1 else f"rank {ranks[0]} has {value}"


@pytest.mark.parametrize(
    ("size", "members", "cache"), [(2, [0, 1], 4096), (2, [0, 1], 0), (3, [0, 1, 2], 4096), (3, [0, 2], 4096)]
)
def test_all_ranks_hear_who_wants_what(size: int, members: list[int], cache: int) -> None:
    environ = {"HVDLITE_CACHE_CAPACITY": str(cache), "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "10"}
    outcomes = process_ranks(size, _disagree, members, environ=environ, deadline_s=60)
    told = {outcome.rank: outcome.result() for outcome in outcomes}
    for number, (title, ours, theirs, _) in enumerate(rows(members[0], members[-1])):
        name = f"{number}: {title}"
        sides = f"{_listed(members[:-1], ours)}; {_listed(members[-1:], theirs)}"
        for rank in members:
            for text in told[rank][name]:
                what = title.split(maxsplit=3 if " and " in title else 1)[-1]
                assert text.startswith(f"ranks disagree about the {what} of tensor '{name}"), text
                assert sides in text
    assert all(told[rank] == {} for rank in range(size) if rank not in members)


def _all_different() -> list[str]:
    hvd.init()
    rank = hvd.rank()
    texts = []
    for call in (
        lambda: hvd.allreduce(np.ones(3 + rank % 2), name="two sides"),
        lambda: hvd.allreduce(np.ones(3 + rank), name="all sides"),
        lambda: hvd.broadcast(np.ones(3), rank, name="roots"),
    ):
        with pytest.raises(hvd.HorovodInternalError) as caught:
            call()
        texts.append(str(caught.value).split(": ", 1)[1])
    hvd.shutdown()
    return texts


def test_every_side_is_named() -> None:
    expected = [
        "ranks 0, 2 have [3]; ranks 1, 3 have [4]. Submit the same on every rank.",
        "rank 0 has [3]; rank 1 has [4]; rank 2 has [5]; rank 3 has [6]. Submit the same on every rank.",
        "rank 0 has 0; rank 1 has 1; rank 2 has 2; rank 3 has 3. Submit the same on every rank.",
    ]
    assert [outcome.result() for outcome in process_ranks(4, _all_different)] == [expected] * 4


def _groups_of_different_lengths() -> list[str]:
    hvd.init()
    rank = hvd.rank()
    handle = hvd.grouped_allreduce_async([np.ones(3), np.ones(3 + rank), np.ones((), "fd"[rank])], name="group")
    with pytest.raises(hvd.Mismatch) as caught:
        hvd.synchronize(handle)
    assert hvd.grouped_allreduce([np.ones(3)] * 3, name="group", op=hvd.Sum)[2][0] == hvd.size()
    hvd.shutdown()
    return [str(caught.value)]


def test_a_group_fails_with_the_first_error_of_its_tensors() -> None:
    ours, theirs = (outcome.result() for outcome in process_ranks(2, _groups_of_different_lengths))
    assert ours == theirs
    assert "shape of tensor 'group_2of3': rank 0 has [3]; rank 1 has [4]" in ours[0]
