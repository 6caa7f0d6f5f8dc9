"""Collectives of Python objects, for every front end. Objects travel as bytes.

They are pickled by name where possible: ranks run the same program, so a class is then the same one on all of them.
Objects without a name, such as lambdas, are pickled by value, which needs the package cloudpickle on every rank.

An object travels as two collectives, the length of its pickle and then the pickle (`hvdlite.engine.main_thread`). It is
unpickled only from bytes that came over this job's own data plane: from a process that holds the job's key and runs the
user's program already.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.errors import HorovodInternalError
from hvdlite.groups.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.ops.arrays import collectives as arrays
from hvdlite.ops.by_value import UNPICKLABLE, dump_by_value, loads
from hvdlite.ops.handles import synchronize
from hvdlite.session import group_of

_FAILED = -1  # sent instead of a length, so that the other ranks raise and do not wait for bytes that never come


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of ``root_rank`` on every rank: on the root ``obj`` itself, elsewhere an unpickled copy.

    Lambdas and local definitions need the package cloudpickle. Raises ValueError on the root for an
    object that cannot be pickled, or what its own methods raised, and then HorovodInternalError on the other ranks.
    """
    data, is_own = broadcast_bytes(group_of(process_set), lambda: _dumps(obj), root_rank, name)
    return obj if is_own else _loads(data)


def broadcast_bytes(
    group: Group,
    dumps: Callable[[], bytes],
    root_rank: int,
    name: str | None,
    and_then: Callable[[memoryview], None] = lambda _: None,
) -> tuple[memoryview, bool]:
    """Broadcasts the bytes that ``dumps`` returns on the root. Returns them, and whether this rank is the root.

    ``and_then`` is called with them, and may go on with collectives. An interrupt does not keep it from that, so it may
    run in another thread.
    """
    is_root = group.ranks[group.rank] == root_rank
    data, failure = _pickled(dumps) if is_root else (_NO_BYTES, None)
    first = arrays.broadcast_part("length", length := _length(data, failure), root_rank, name, group)

    def rest() -> npt.NDArray[np.uint8]:
        synchronize(first)
        if length.item() == _FAILED:
            return _NO_BYTES
        received = data if is_root else np.empty(length.item(), np.uint8)
        synchronize(group.run(arrays.broadcast_part("pickle", received, root_rank, name, group)))
        and_then(received.data)
        return received

    received = group.run_chained(first, rest)
    if failure is not None:
        raise failure
    if length.item() == _FAILED:
        raise HorovodInternalError(f"rank {root_rank} could not pickle its object for a broadcast; see its error")
    return received.data, is_root


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns unpickled copies of the objects of all ranks, in rank order.

    Raises as `broadcast_object` does: ValueError on the rank whose object cannot be pickled, HorovodInternalError on
    the others.
    """
    group = group_of(process_set)
    data, failure = _pickled(lambda: _dumps(obj))
    first = arrays.allgather_part("length", _length(data, failure), name, group)

    def rest() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        lengths = synchronize(first)
        if _FAILED in lengths:
            return lengths, _NO_BYTES
        pickles = group.run(arrays.allgather_part("pickle", data, name, group))
        return lengths, synchronize(pickles)

    lengths, gathered = group.run_chained(first, rest)
    if failure is not None:
        raise failure
    if _FAILED in lengths:
        failed = [number for number, length in zip(group.ranks, lengths, strict=True) if length == _FAILED]
        raise HorovodInternalError(
            f"ranks {failed} could not pickle their objects for allgather_object; see their errors"
        )
    return [_loads(part.data) for part in np.split(gathered, np.cumsum(lengths)[:-1])]


_NO_BYTES: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


def _dumps(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj)
    except UNPICKLABLE as error:
        return dump_by_value(obj, str(error))


def _loads(data: Any) -> Any:
    try:
        return loads(data)
    except ModuleNotFoundError as error:
        if error.name != "cloudpickle":
            raise
        raise HorovodInternalError(
            "the object was pickled by value, which needs the package cloudpickle on every rank; install it here"
        ) from error


def _pickled(dumps: Callable[[], bytes]) -> tuple[npt.NDArray[np.uint8], Exception | None]:
    try:
        return np.frombuffer(bytearray(dumps()), np.uint8), None
    except Exception as error:  # an object's own __reduce__ may raise anything, and the other ranks must hear of it
        return _NO_BYTES, error


def _length(data: npt.NDArray[np.uint8], failure: Exception | None) -> npt.NDArray[np.int64]:
    return np.array([data.size if failure is None else _FAILED], np.int64)
