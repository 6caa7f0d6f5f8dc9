"""Do the requests of all ranks for one name fit together?

The text for a mismatch groups the ranks by what they submitted, so that the odd one out is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hvdlite.core.dtypes import OP_NAMES
from hvdlite.core.messages import Kind, Request

_Check = tuple[str, Callable[[Request], Any]]

_ALWAYS: tuple[_Check, ...] = (
    ("operation", lambda request: str(request.kind)),
    ("dtype", lambda request: str(request.dtype)),
)
_SHAPE: _Check = ("shape", lambda request: list(request.shape))
_BY_KIND: dict[Kind, tuple[_Check, ...]] = {
    Kind.ALLREDUCE: (
        _SHAPE,
        ("reduce op", lambda request: OP_NAMES[request.op]),
        ("prescale_factor", lambda request: request.prescale),
        ("postscale_factor", lambda request: request.postscale),
    ),
    Kind.ALLGATHER: (
        ("number of dimensions", lambda request: len(request.shape)),
        ("shape after the first dimension", lambda request: list(request.shape[1:])),
    ),
    Kind.BROADCAST: (_SHAPE, ("root rank", lambda request: request.root)),
    Kind.BARRIER: (),
}


def disagreement(requests: Sequence[Request]) -> str:
    """Why ``requests``, one of each rank in rank order, cannot run together; empty if they can."""
    first = requests[0]
    if all(request == first for request in requests):
        return ""
    for what, value_of in (*_ALWAYS, *_BY_KIND[first.kind]):
        values = [value_of(request) for request in requests]
        if any(value != values[0] for value in values):
            return _explain(first.name, what, values)
    return ""


def _explain(name: str, what: str, values: Sequence[Any]) -> str:
    ranks_by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks_by_value.setdefault(str(value), []).append(rank)
    sides = "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} ha{'ve' if len(ranks) > 1 else 's'} {value}"
        for value, ranks in ranks_by_value.items()
    )
    return f"ranks disagree about the {what} of tensor {name!r}: {sides}. Submit the same on every rank."
