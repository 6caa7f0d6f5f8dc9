"""Blocking collectives that a front end makes with its own tensors, and how many of them were one native call.

Ranks make the same ones with the page of shared memory and without (docs/agreement.md): all results have the same bits.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from hvdlite import native
from hvdlite.control.page import Page
from hvdlite.engine.calls import Calls
from hvdlite.negotiation.entry import Entry
from tests.harness.forkserver import PLAIN, ForkServer
from tests.harness.processes import process_ranks

FORMS: Final = (
    *("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"),
    *("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"),
)
IN_PLACE: Final = ("allreduce_", "broadcast_", "grouped_allreduce_")
ONLY_NAMED: Final = ("allgather", "alltoall", "grouped_")
"""How the forms begin that take the usual way without a name: the shape of one rank's tensor does not describe them."""

NAMED: Final = "named"
UNNAMED: Final = "unnamed"

Way = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes of a function of tensors another that calls it in some way, such as in a graph."""

Made = dict[tuple[str, str], tuple[str, Counter[str]]]
"""For each form and way of calling it, a hash of all results, and what was counted."""

_DTYPES: Final = ("int32", "float16", "float32")
_ROWS: Final = (0, 1000, 20_000)  # of which the last take more than a slot
_ROUNDS: Final = 6  # in the first a name is new; others have a few calls that are left, because a rank is late
_ROUNDS_OF_GRAPHS: Final = 2


class Counted:
    """Counts the calls of this process that were done, and left, and the tensors that turns find decided in a page."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        finish, adopt, follow = Calls._finish, Calls.settle, Page.next

        def counted_finish(calls: Calls, entries: Sequence[Entry[Any]], *arguments: Any) -> None:
            self.counts["done"] += 1
            self.counts[f"{len(entries)} tensors"] += 1
            self.counts[str(entries[0].request.kind)] += 1
            finish(calls, entries, *arguments)

        def counted_settle(calls: Calls) -> bool:
            before = len(calls._current)
            is_unnamed = adopt(calls)
            self.counts["left"] += before > len(calls._current)
            return is_unnamed

        def counted_next(page: Page, is_willing: bool) -> tuple[int, int, int, int]:
            decision = follow(page, is_willing)
            if decision[0] == native.DECIDED_TENSORS:
                self.counts["decided"] += decision[1].bit_count()
            return decision

        self._patches: list[Any] = [
            patch.object(Calls, "_finish", counted_finish),
            patch.object(Calls, "settle", counted_settle),
            patch.object(Page, "next", counted_next),
        ]

    def __enter__(self) -> Counter[str]:
        for each in self._patches:
            each.start()
        return self.counts

    def __exit__(self, *details: object) -> None:
        for each in self._patches:
            each.stop()


def make(
    front: Any, tensor_of: Callable[[Any], Any], forms: Sequence[str], label: str = NAMED, way: Way | None = None
) -> Made:
    """Makes each of ``forms`` with tensors of several dtypes and sizes, several times, in the ``way`` of ``label``.

    ``front`` is the module of a front end, and ``tensor_of`` makes its tensors of arrays. Ranks gather different
    numbers of rows where that can be known: neither without names nor in all graphs.
    """
    made: Made = {}
    for form in forms:
        with Counted() as counts:
            results = sha256()
            tensors = [[tensor_of(_array(dtype, rows, front.rank())) for dtype in _DTYPES] for rows in _ROWS]
            if "allgather" in form and label == NAMED:
                tensors = [[tensor[front.rank() :] for tensor in each] for each in tensors]
            call = _function(front, form, "" if label == UNNAMED else f"{form} {label}")
            call = call if way is None else way(call)
            for _ in range(_ROUNDS if way is None else _ROUNDS_OF_GRAPHS):
                for array in map(np.asarray, _flat(call(*tensors))):
                    results.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
        made[form, label] = results.hexdigest(), counts
    return made


def _function(front: Any, form: str, name: str) -> Callable[..., Any]:
    """A function that calls ``form`` with each tensor of its lists, or with each list."""

    def call(given: Any, name: str | None) -> Any:
        if form == "barrier":
            return front.barrier()
        size = front.size()
        options = {"op": front.Sum} if "reduce" in form else {}
        arguments: list[Any] = [copy.deepcopy(given) if form.endswith("_") else given]
        if "broadcast" in form:
            arguments.append(size - 1)
        elif form == "alltoall":
            least, rest = divmod(given.shape[0], size)
            arguments.append([least + rest] + [least] * (size - 1))
        return getattr(front, form)(*arguments, name=name, **options)

    def call_all(*lists: Any) -> list[Any]:
        given = lists if form.startswith("grouped_") else chain(*lists)
        return [call(each, f"{name} {number}" if name else None) for number, each in enumerate(given)]

    return call_all


def _array(dtype: str, rows: int, rank: int) -> Any:
    random = np.random.default_rng((rank, rows))
    if dtype.startswith("float"):  # whose sums depend on the order
        return random.normal(size=(rows, 2)).astype(dtype)
    return random.integers(0, 5, (rows, 2)).astype(dtype)


def _flat(found: Any) -> Iterator[Any]:
    if isinstance(found, (list, tuple)):
        for each in found:
            yield from _flat(each)
    elif found is not None:  # of a barrier
        yield found


def same_without_the_page(
    count: int, work: Callable[[], Made], environ: Mapping[str, str] | None = None, server: ForkServer = PLAIN
) -> list[tuple[str, str, Counter[str]]]:
    """Runs ``work`` on ``count`` ranks, and once more without a page; all results have the same bits.

    Returns each rank's counts of each form and label with the page. Without it, there is nothing to count.
    """
    with_page, without = (
        [outcome.result() for outcome in process_ranks(count, work, environ={**(environ or {}), **page}, server=server)]
        for page in ({}, {"HVDLITE_PAGE": "0"})
    )
    for mine, expected in zip(with_page, without, strict=True):
        different = [key for key, (results, _) in mine.items() if results != expected[key][0]]
        assert not different, f"these have other results with the page: {different}"
        assert not any(counts.total() for _, counts in expected.values()), expected
    return [(*key, counts) for mine in with_page for key, (_, counts) in mine.items()]
