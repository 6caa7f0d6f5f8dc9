"""Checks a single request, and compares the requests of several ranks for one name.

The text of a mismatch groups the ranks by their values, so that a rank that differs is easy to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvdlite.members.ranges import named
from hvdlite.negotiation.kinds import KINDS, Check, Ranks
from hvdlite.negotiation.messages import EMPTY_GROUP, JOIN_NAME, Kind, Request
from hvdlite.tensors.device import CPU
from hvdlite.tensors.dtypes import FLOAT8, Adasum, Average, Sum, added_as, is_complex

_ALWAYS = (
    Check("operation", lambda request, _: str(request.kind)),
    Check("dtype", lambda request, _: str(request.dtype)),
    Check("device", lambda request, _: request.device.kind),
)


def is_well_formed(request: Request, rank: int, size: int) -> bool:
    """True if ``request`` is valid for ``rank`` in a group of ``size``. Checks what the decoder cannot."""
    row = KINDS[request.kind]
    if request.root >= size or (request.peer != -1) != row.has_peer:
        return False
    if row.has_peer and (
        request.peer >= size or request.root == request.peer or rank not in (request.root, request.peer)
    ):
        return False
    if (request.kind is Kind.JOIN) != (request.name == JOIN_NAME) or (request.cacheable and not row.by_all):
        return False
    if request.group_length and not _is_in_group(request):
        return False
    if request.op == Adasum and not (row.takes_adasum and request.dtype.is_floating):
        return False
    if request.device.kind != CPU.kind and (request.op == Adasum or not row.has_tensor):
        return False
    if row.reduces and (
        added_as(request.dtype) is None
        or (is_complex(request.dtype) and request.op not in (Sum, Average))
        or (request.dtype in FLOAT8 and request.device.kind == CPU.kind)
    ):
        return False
    return row.extents.fit(request, rank, size)


def _is_in_group(request: Request) -> bool:
    _, bracket, rest = request.name.rpartition("[")
    number = rest[:-1]
    if request.group_length == EMPTY_GROUP:
        return bool(bracket) and rest == "0]" and request.kind is Kind.ALLREDUCE and request.nbytes == 0
    return bool(bracket) and rest[-1:] == "]" and number.isdecimal() and int(number) < request.group_length


def disagreement(requests: Sequence[Request], submitters: Ranks, ranks: Ranks) -> str:
    """Returns why ``requests`` for one name cannot run together, or an empty string if they can.

    ``submitters`` are the ranks of the requests, in the same order, and ``ranks`` all ranks of the group.
    """
    first = requests[0]
    if all(request == first for request in requests):
        return ""
    if differ_in_length(requests):
        return _explain_lengths(requests, submitters)
    for what, value_of in (*_ALWAYS, *KINDS[first.kind].alike):
        values = [value_of(request, ranks) for request in requests]
        if any(value != values[0] for value in values):
            text = _explain(f"{what} of tensor {first.name!r}", values, submitters)
            is_gradient = first.name.startswith("gradient.")  # as `hvdlite.training.naming` names them
            if is_gradient and {request.kind for request in requests} == {Kind.ALLREDUCE, Kind.ALLGATHER}:
                text += " A gradient that is sparse on some ranks and dense on others needs sparse_as_dense=True."
            return text
    return ""


def differ_in_length(requests: Sequence[Request]) -> bool:
    """True if the groups differ in length, so that some of their tensors have no counterpart on some ranks."""
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
        f"{named(agreeing)} ha{'ve' if len(agreeing) > 1 else 's'} {value}"
        for value, agreeing in ranks_by_value.items()
    )
    return f"ranks disagree about the {what}: {sides}. Submit the same on every rank."
