"""Collectives of Python objects, for all front ends.

Objects travel as pickles. Where possible they are pickled by name: ranks run the same program, so they have the same
classes. Objects without a name, such as lambdas, are pickled by value, which needs the package cloudpickle on every
rank.

An object takes two chained collectives (`hvdlite.engine.main_thread`): the length of its pickle, and the pickle. A rank
unpickles only bytes from a data plane of its job, and so from a process that has the job's key and runs the user's
program already.
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

_FAILED = -1  # sent instead of a length, so that the other ranks raise and do not wait for a pickle that never comes


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of ``root_rank`` on every rank: on the root ``obj`` itself, elsewhere an unpickled copy.

    Lambdas and local definitions need the package cloudpickle. If the object cannot be pickled, raises ValueError on
    the root, or the error that a method of the object raised, and HorovodInternalError on the other ranks.
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

    ``and_then`` is called with the bytes, and may call further collectives. It runs even if a signal handler interrupts
    the call, and so perhaps in another thread.
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
    """Returns unpickled copies of the objects of all ranks, as a list in rank order.

    If the object of a rank cannot be pickled, raises the errors of `broadcast_object`: ValueError on this rank, and
    HorovodInternalError on the other ranks.
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
    except Exception as error:  # of any type, from an object's __reduce__: the other ranks must receive _FAILED
        return _NO_BYTES, error


def _length(data: npt.NDArray[np.uint8], failure: Exception | None) -> npt.NDArray[np.int64]:
    return np.array([data.size if failure is None else _FAILED], np.int64)
