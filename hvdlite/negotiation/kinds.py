"""The table of kinds of collectives: one row for each. Code that treats kinds differently reads this table.

Properties that only one front end needs, such as derivatives, are in a table of that front end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hvdlite.negotiation import rows
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.rows import Rows
from hvdlite.tensors.dtypes import OP_NAMES

Ranks = Sequence[int]
"""Ranks by their numbers in the job, as users know them."""


class Check(NamedTuple):
    """A property that must be equal on all ranks: its name, and a function that returns its value as users see it."""

    what: str
    value_of: Callable[[Request, Ranks], Any]


_SHAPE = Check("shape", lambda request, _: list(request.shape))
_ROOT = Check("root rank", lambda request, ranks: ranks[request.root])
_REDUCTION = (
    _SHAPE,
    Check("reduce op", lambda request, _: OP_NAMES[request.op]),
    Check("prescale_factor", lambda request, _: request.prescale),
    Check("postscale_factor", lambda request, _: request.postscale),
)
_BUT_ROWS = (
    Check("number of dimensions", lambda request, _: len(request.shape)),
    Check("shape after the first dimension", lambda request, _: list(request.shape[1:])),
)

_ALIKE = rows.Alike()


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    - ``runs_as``: the collective of a data plane that runs it.
    - ``alike``: the properties that must be equal on all ranks, besides the kind, the dtype and the device kind.
    - ``extents``: how the numbers of rows differ between the ranks.
    - ``moves``: computes the rows that move (`hvdlite.negotiation.rows`).
    - ``by_all``: all ranks submit it, so a bit may stand for it.
    - ``has_peer``: only its root and its peer submit it.
    - ``zeros_for_joined``: ranks that have joined contribute zeros, which change no sum.
    - ``takes_adasum``: Adasum is one of its operations.
    """

    kind: Kind
    runs_as: Kind
    alike: tuple[Check, ...] = ()
    extents: rows.Alike = _ALIKE
    moves: Callable[[Request, Rows, int], Rows] = rows.as_agreed
    by_all: bool = True
    has_peer: bool = False
    zeros_for_joined: bool = False
    takes_adasum: bool = False

    @property
    def reduces(self) -> bool:
        """True if it computes with elements. All other kinds move bytes."""
        return self.runs_as in (Kind.ALLREDUCE, Kind.REDUCESCATTER)

    @property
    def has_tensor(self) -> bool:
        """True if bytes move. In other kinds ranks only wait for each other."""
        return self.runs_as not in (Kind.BARRIER, Kind.JOIN)


KINDS: Final = (  # in the order of their numbers on the wire
    Row(
        kind=Kind.ALLREDUCE,
        runs_as=Kind.ALLREDUCE,
        alike=_REDUCTION,
        zeros_for_joined=True,
        takes_adasum=True,
    ),
    Row(
        kind=Kind.ALLGATHER,
        runs_as=Kind.ALLGATHER,
        alike=_BUT_ROWS,
        extents=rows.Given(),
    ),
    Row(
        kind=Kind.BROADCAST,
        runs_as=Kind.ALLGATHER,
        alike=(_SHAPE, _ROOT),
        moves=rows.all_of_root,
    ),
    Row(
        kind=Kind.BARRIER,
        runs_as=Kind.BARRIER,
    ),
    Row(
        kind=Kind.REDUCESCATTER,
        runs_as=Kind.REDUCESCATTER,
        alike=_REDUCTION,
        extents=rows.AlikeInRows(),
        moves=rows.evenly,
    ),
    Row(
        kind=Kind.ALLTOALL,
        runs_as=Kind.ALLTOALL,
        alike=_BUT_ROWS,
        extents=rows.Split(),
    ),
    Row(
        kind=Kind.REDUCE,
        runs_as=Kind.REDUCESCATTER,
        alike=(*_REDUCTION, _ROOT),
        moves=rows.all_of_root,
    ),
    Row(
        kind=Kind.GATHER,
        runs_as=Kind.ALLTOALL,
        alike=(*_BUT_ROWS, _ROOT),
        extents=rows.Given(),
        moves=rows.to_root,
    ),
    Row(
        kind=Kind.SCATTER,
        runs_as=Kind.ALLTOALL,
        alike=(*_BUT_ROWS, _ROOT),
        extents=rows.SplitByRoot(),
        moves=rows.from_root,
    ),
    Row(
        kind=Kind.SEND,
        runs_as=Kind.ALLTOALL,
        alike=(_SHAPE, Check("sender", _ROOT.value_of)),
        moves=rows.to_peer,
        by_all=False,
        has_peer=True,
    ),
    Row(
        kind=Kind.JOIN,
        runs_as=Kind.JOIN,
        by_all=False,
    ),
)
