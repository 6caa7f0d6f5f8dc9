"""A collective with its arguments, and how its results are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hvdlite.negotiation.handle import Handle
from hvdlite.ops import Collectives, GroupHandle
from hvdlite.ops.arrays import collectives
from hvdlite.ops.forms import draft_of
from hvdlite.ops.meeting import barrier_entry, join_entry


class Tensors(NamedTuple):
    """Collectives over one kind of tensors, with the ways to and from a list of whole numbers."""

    collectives: Collectives[Any]
    counts: Callable[[Sequence[int]], Any]
    numbers: Callable[[Any], Sequence[int]]


ARRAYS: Final = Tensors(collectives, lambda values: np.array(values, np.int32), lambda array: array.tolist())


class Call(NamedTuple):
    """A blocking form of a collective, and its arguments but for the tensors.

    A grouped form takes any number of tensors and has as many results; ``alltoall`` takes the splits as its second. A
    form that gathers has the numbers of rows that came from each rank as further results, one for each tensor. Of the
    forms without tensors, ``join`` has one result of one row.
    """

    form: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def is_grouped(self) -> bool:
        return self.form.startswith("grouped_")

    @property
    def gathers(self) -> bool:
        """True if ranks hear of the first dimension of the results only when it has run."""
        return self.form in ("allgather", "grouped_allgather", "alltoall")

    def draft(self, kind: Tensors, tensors: Sequence[Any]) -> Handle[Any] | GroupHandle[Any]:
        """Returns the handle of the collective, which is not in flight yet."""
        arguments = dict(self.arguments)
        if self.form == "alltoall" and len(tensors) > 1:
            arguments["splits"] = kind.numbers(tensors[1])
        if self.form in _MEETINGS:
            return _MEETINGS[self.form](**arguments)
        return draft_of(getattr(Collectives, self.form))(
            kind.collectives, list(tensors) if self.is_grouped else tensors[0], **arguments
        )

    def results(self, kind: Tensors, handle: Handle[Any] | GroupHandle[Any], found: Any) -> list[Any]:
        """Returns the results as a list, given the handle, which is done, and what `synchronize` has ``found``."""
        if self.form in _MEETINGS:
            return [] if found is None else [kind.counts([found])]
        if self.form == "alltoall":
            return list(found)
        listed = list(found) if self.is_grouped else [found]
        if self.gathers:
            handles = handle.handles if isinstance(handle, GroupHandle) else (handle,)
            listed += [kind.counts(each.rows) for each in handles[: len(listed)]]
        return listed


_MEETINGS: Final[dict[str, Callable[..., Handle[Any]]]] = {"barrier": barrier_entry, "join": join_entry}


def submit(handle: Handle[Any] | GroupHandle[Any]) -> None:
    """Puts a drafted handle in flight."""
    if isinstance(handle, GroupHandle):
        handle.group.submit_all(handle.handles)
    else:
        assert handle.group is not None
        handle.group.submit(handle)
