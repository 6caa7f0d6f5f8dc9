"""A collective with its arguments, and its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from hvdlite.ops import Collectives, Group, GroupHandle, Handle, ProcessSet, global_process_set, group_of
from hvdlite.ops.arrays import collectives
from hvdlite.ops.meeting import barrier_entry, join_entry
from hvdlite.session import current


class Tensors(NamedTuple):
    """Collectives over one kind of tensors, with conversions from and to a list of whole numbers."""

    collectives: Collectives[Any]
    counts: Callable[[Sequence[int]], Any]
    numbers: Callable[[Any], Sequence[int]]


ARRAYS: Final = Tensors(collectives, lambda values: np.array(values, np.int32), lambda array: array.tolist())


class Call(NamedTuple):
    """A blocking form of a collective, and its arguments except the tensors.

    A grouped form takes any number of tensors and has as many results; the second tensor of ``alltoall`` is the splits.
    A form that gathers has further results, one for each tensor: the numbers of rows from each rank. ``join`` takes no
    tensor and has one result of one row. With ``rank``, what a graph does with the results is right on that rank only.
    """

    form: str
    arguments: Mapping[str, Any]
    rank: int | None = None

    @property
    def process_set(self) -> ProcessSet:
        found: ProcessSet = self.arguments.get("process_set", global_process_set)
        return found

    @property
    def is_meeting(self) -> bool:
        """True if what follows in the program runs after it, even without its results."""
        return self.form in _MEETINGS

    @property
    def is_grouped(self) -> bool:
        return self.form.startswith("grouped_")

    @property
    def gathers(self) -> bool:
        """True if the first dimension of the results is known only after it has run."""
        return self.form in ("allgather", "grouped_allgather", "alltoall")

    def draft(self, kind: Tensors, tensors: Sequence[Any]) -> Handle[Any] | GroupHandle[Any]:
        """Returns the handle of the collective, not yet in flight."""
        arguments = dict(self.arguments)
        if self.form == "alltoall" and len(tensors) > 1:
            arguments["splits"] = kind.numbers(tensors[1])
        group = group_of(arguments.pop("process_set", global_process_set))
        if self.form in _MEETINGS:
            return _MEETINGS[self.form](group)
        return kind.collectives.draft(self.form, group, list(tensors) if self.is_grouped else tensors[0], **arguments)

    def results(self, kind: Tensors, handle: Handle[Any] | GroupHandle[Any], found: Any) -> list[Any]:
        """Returns the results of a finished handle as a list; ``found`` is what `synchronize` returned."""
        if self.form in _MEETINGS:
            return [] if found is None else [kind.counts([found])]
        if self.form == "alltoall":
            return list(found)
        listed = list(found) if self.is_grouped else [found]
        if self.gathers:
            handles = handle.handles if isinstance(handle, GroupHandle) else (handle,)
            listed += [kind.counts(each.rows) for each in handles[: len(listed)]]
        return listed


_MEETINGS: Final[dict[str, Callable[[Group], Handle[Any]]]] = {"barrier": barrier_entry, "join": join_entry}


def submit(handle: Handle[Any] | GroupHandle[Any]) -> None:
    """Puts a drafted handle in flight."""
    if isinstance(handle, GroupHandle):
        handle.group.submit_all(handle.handles)
    else:
        assert handle.group is not None
        handle.group.submit(handle)


def encoded(call: Call) -> str:
    """Returns ``call`` as text, which graphs and SavedModels contain.

    It includes the number of ranks, because the graph around a collective, such as its gradient, may depend on it.
    Raises ValueError if its process set is not registered.
    """
    ranks = None if call.process_set is global_process_set else _ranks_of(call.process_set)
    size = current().membership.size if ranks is None else len(ranks)
    arguments = {key: None if key == "process_set" else value for key, value in call.arguments.items()}
    return json.dumps([call.form, arguments, ranks, size, call.rank], default=_plain)


def decoded(text: bytes) -> Call:
    """Returns the call of an `encoded` text. Raises ValueError if its graph was built for other ranks."""
    form, arguments, ranks, size, rank = _parts(text)
    membership = current().membership
    here = membership.size if ranks is None else len(ranks)
    if size != here:
        raise ValueError(
            f"{form} is in a graph that was built by {size} rank(s), and there are {here}; a saved graph keeps what "
            "depends on that, so call the Python function that builds it again"
        )
    if rank is not None and rank != membership.rank:
        raise ValueError(
            f"{form} belongs to a gradient in a graph that was built by rank {rank}, and this is rank "
            f"{membership.rank}; save a SavedModel with such gradients on each rank, and load there what it has saved"
        )
    if "process_set" in arguments:
        arguments = {**arguments, "process_set": global_process_set if ranks is None else current().sets.of(ranks)}
    return Call(form, arguments, rank)


def _ranks_of(process_set: Any) -> list[int]:
    if not isinstance(process_set, ProcessSet):
        return list(group_of(process_set).ranks)  # raises an error
    current().sets.refuse_unknown(process_set)  # the graph has only the ranks, which may match another set
    return list(process_set.ranks or ())


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r:.60} cannot be an argument of a collective in a graph; pass a plain number or text")


@cache
def _parts(text: bytes) -> tuple[str, Mapping[str, Any], list[int] | None, int, int | None]:
    return tuple(json.loads(text))
