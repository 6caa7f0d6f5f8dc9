"""The collectives, written once for every front end.

`Collectives` handles tensors only through an `Adapter`, which turns one into a buffer and makes empty ones. A front end
makes an instance with its own adapter; `hvdlite.ops.arrays` is the one for numpy.
"""

from typing import TypeVar

from hvdlite.ops.adapter import Adapter, Compressor
from hvdlite.ops.handles import GroupHandle, abandon, poll, synchronize, synchronize_all
from hvdlite.ops.meeting import barrier, join
from hvdlite.ops.reductions import Reductions
from hvdlite.ops.transfers import Transfers
from hvdlite.session import group_of

__all__ = [
    "Adapter",
    "Collectives",
    "Compressor",
    "GroupHandle",
    "abandon",
    "barrier",
    "group_of",
    "join",
    "poll",
    "synchronize",
    "synchronize_all",
]

T = TypeVar("T")


class Collectives(Reductions[T], Transfers[T]):
    """All collectives for the tensors of one front end.

    Every function takes a ``name`` that identifies the tensor on all ranks: without one, ranks must call functions of
    the same kind in the same order. ``process_set`` names the ranks that take part, by default all. Asynchronous forms
    return a handle for `poll` and `synchronize`, and forms that end in ``_`` write into their input. All raise
    ValueError for invalid arguments, DuplicateName while a tensor of this name is in flight, and from
    `synchronize` a HorovodInternalError if the collective did not happen: `Mismatch` when ranks disagree, `PeerLost`,
    `Stalled`, `ShutDown`.
    """
