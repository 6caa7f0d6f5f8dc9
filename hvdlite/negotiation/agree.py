"""Do the requests of several ranks for one name fit together?

The text for a mismatch groups the ranks by what they submitted, so that the odd one out is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hvdlite.negotiation.messages import EMPTY_GROUP, Kind, Request
from hvdlite.tensors.dtypes import OP_NAMES

Ranks = Sequence[int]
"""The numbers that users know the ranks by."""

_Check = tuple[str, Callable[[Request, Ranks], Any]]

_ALWAYS: tuple[_Check, ...] = (
    ("operation", lambda request, _: str(request.kind)),
    ("dtype", lambda request, _: str(request.dtype)),
)
_SHAPE: _Check = ("shape", lambda request, _: list(request.shape))
_ROOT: _Check = ("root rank", lambda request, ranks: ranks[request.root])
_REDUCTION: tuple[_Check, ...] = (
    _SHAPE,
    ("reduce op", lambda request, _: OP_NAMES[request.op]),
    ("prescale_factor", lambda request, _: request.prescale),
    ("postscale_factor", lambda request, _: request.postscale),
)
_ROWS: tuple[_Check, ...] = (
    ("number of dimensions", lambda request, _: len(request.shape)),
    ("shape after the first dimension", lambda request, _: list(request.shape[1:])),
)
_BY_KIND: dict[Kind, tuple[_Check, ...]] = {
    Kind.ALLREDUCE: _REDUCTION,
    Kind.REDUCESCATTER: _REDUCTION,
    Kind.REDUCE: (*_REDUCTION, _ROOT),
    Kind.ALLGATHER: _ROWS,
    Kind.ALLTOALL: _ROWS,
    Kind.GATHER: (*_ROWS, _ROOT),
    Kind.SCATTER: (*_ROWS, _ROOT),
    Kind.BROADCAST: (_SHAPE, _ROOT),
    Kind.SEND: (_SHAPE, ("sender", lambda request, ranks: ranks[request.root])),
    Kind.BARRIER: (),
    Kind.JOIN: (),
}


def disagreement(requests: Sequence[Request], submitters: Ranks, ranks: Ranks) -> str:
    """Why ``requests``, each of the rank in the same place of ``submitters``, cannot run together; empty if they can.

    ``ranks`` are those of the whole group.
    """
    first = requests[0]
    if all(request == first for request in requests):
        return ""
    if differ_in_length(requests):
        return _explain_lengths(requests, submitters)
    for what, value_of in (*_ALWAYS, *_BY_KIND[first.kind]):
        values = [value_of(request, ranks) for request in requests]
        if any(value != values[0] for value in values):
            return _explain(f"{what} of tensor {first.name!r}", values, submitters)
    return ""


def differ_in_length(requests: Sequence[Request]) -> bool:
    """Whether they belong to groups of different lengths, so that other tensors have no counterpart on some ranks."""
    return any(request.group_length != requests[0].group_length for request in requests)


def _explain_lengths(requests: Sequence[Request], ranks: Ranks) -> str:
    group = next(request.group_name for request in requests if request.group_length)
    values = [_length(request) for request in requests]
    return _explain(f"number of tensors in group {group!r}", values, ranks)


def _length(request: Request) -> str:
    if request.group_length == EMPTY_GROUP:
        return "0"
    return str(request.group_length or f"a tensor {request.name!r} outside of it")


def _explain(what: str, values: Sequence[Any], ranks: Ranks) -> str:
    ranks_by_value: dict[str, list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        ranks_by_value.setdefault(str(value), []).append(rank)
    sides = "; ".join(
        f"rank{'s' if len(agreeing) > 1 else ''} {', '.join(map(str, agreeing))} "
        f"ha{'ve' if len(agreeing) > 1 else 's'} {value}"
        for value, agreeing in ranks_by_value.items()
    )
    return f"ranks disagree about the {what}: {sides}. Submit the same on every rank."
