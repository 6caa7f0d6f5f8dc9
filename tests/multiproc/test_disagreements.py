"""Ranks that want different things under one name: all of them hear which, on new names and on known ones.

The next collective works, also one of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks
from tests.harness.patience import STALLED
from tests.multiproc import calls
from tests.multiproc.calls import Call

SINGLE = [kind for kind in (*calls.REDUCTIONS, *calls.MOVEMENTS) if not kind.startswith("grouped") and kind != "send"]
GROUPED = ["grouped_allreduce", "grouped_reducescatter", "grouped_allgather"]


class Row(NamedTuple):
    """The call of the last member of a set, that of all others, and how the message tells the two apart."""

    what: str
    ours: Call
    theirs: Call
    our_text: Any
    their_text: Any


def rows(members: Sequence[int]) -> Iterator[Row]:
    """Everything that ranks can disagree about, for the collectives among ``members``."""
    for kind in SINGLE + GROUPED:
        ours = Call(kind, (("float64", (6, 2)),))
        yield Row("dtype", ours, replace(ours, parts=(("int32", (6, 2)),)), "float64", "int32")
        wide, flat = (replace(ours, parts=(("float64", shape),)) for shape in ((12, 4), (6,)))
        if kind in (*calls.RAGGED, "scatter"):
            yield Row("shape after the first dimension", ours, wide, [2], [4])
            yield Row("number of dimensions", ours, flat, 2, 1)
        else:
            yield Row("shape", ours, wide, [6, 2], [12, 4])
            yield Row("shape", ours, flat, [6, 2], [6])
        if kind in calls.REDUCTIONS:
            yield Row("reduce op", ours, replace(ours, op=hvd.Max), "Sum", "Max")
            yield Row("prescale_factor", ours, replace(ours, prescale=0.5), 1.0, 0.5)
            yield Row("postscale_factor", replace(ours, postscale=-3.0), ours, -3.0, 1.0)
        if kind in calls.ALLREDUCES:
            yield Row("reduce op", replace(ours, op=hvd.Average), replace(ours, op=hvd.Adasum), "Average", "Adasum")
        if kind in calls.ROOTED:
            yield Row("root rank", ours, replace(ours, root=len(members) - 1), members[0], members[-1])
        if kind in SINGLE:
            for other in SINGLE:
                if other != kind:
                    yield Row("operation", ours, replace(ours, kind=other), kind, other)


def _disagree(members: list[int]) -> list[list[str]]:
    """Returns the errors of each row: under a new name, again, under a known one, and one known as something else."""
    hvd.init()
    process_set = hvd.global_process_set
    if len(members) < hvd.size():
        process_set = hvd.add_process_set(members)
    texts = []
    for number, row in enumerate(rows(members) if hvd.rank() in members else ()):
        name = f"tensor {number}"
        own = row.theirs if hvd.rank() == members[-1] else row.ours
        refused = [_refused(own, name, members, process_set) for _ in range(2)]
        for _ in range(2):
            _call(row.ours, name, members, process_set)
        refused.append(_refused(own, name, members, process_set))
        np.testing.assert_array_equal(hvd.allreduce(np.ones(2), name=name, process_set=process_set), 1)
        refused.append(_refused(own, name, members, process_set))
        _call(row.theirs, name, members, process_set)
        texts.append(refused)
    hvd.barrier()
    hvd.shutdown()
    return texts


def _call(call: Call, name: str, members: Sequence[int], process_set: hvd.ProcessSet) -> None:
    given = [np.ones(shape, dtype) for dtype, shape in call.parts]
    calls.start(call, name, "", given, members, process_set)


def _refused(call: Call, name: str, members: Sequence[int], process_set: hvd.ProcessSet) -> str:
    with pytest.raises(hvd.Mismatch) as caught:
        _call(call, name, members, process_set)
    return str(caught.value)


def _listed(ranks: Sequence[int], value: Any) -> str:
    return f"ranks {', '.join(map(str, ranks))} have {value}" if len(ranks) > 1 else f"rank {ranks[0]} has {value}"


@pytest.mark.parametrize(
    ("size", "members", "cache"), [(2, [0, 1], 4096), (2, [0, 1], 0), (3, [0, 1, 2], 4096), (3, [0, 2], 4096)]
)
def test_all_ranks_hear_who_wants_what(size: int, members: list[int], cache: int) -> None:
    environ = {"HVDLITE_CACHE_CAPACITY": str(cache), **STALLED}
    outcomes = process_ranks(size, _disagree, members, environ=environ)
    told = [outcome.result() for outcome in outcomes]
    for number, row in enumerate(rows(members)):
        sides = f"{_listed(members[:-1], row.our_text)}; {_listed(members[-1:], row.their_text)}"
        tensor = f"tensor {number}{'[0]' if row.ours.kind in GROUPED else ''}"
        text = f"ranks disagree about the {row.what} of tensor {tensor!r}: {sides}. Submit the same on every rank."
        for rank in members:
            assert told[rank][number] == [text] * 4, row
    assert all(told[rank] == [] for rank in range(size) if rank not in members)


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
    assert "shape of tensor 'group[1]': rank 0 has [3]; rank 1 has [4]" in ours[0]
