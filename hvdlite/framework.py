"""What every front end shares, knowing no framework: Python objects as bytes, and waiting for many tensors.

An object travels as two collectives, the length of its pickle and then the pickle. It is unpickled only from bytes that
came over this job's own data plane: from a process that holds the job's key and runs the user's program already.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite import ops
from hvdlite.core.handle import Handle
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.session import rank

_FAILED = -1  # sent instead of a length, so that the other ranks raise and do not wait for bytes that never come


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The object of ``root_rank`` on every rank: on the root ``obj`` itself, elsewhere an unpickled copy.

    Raises on the root what pickling raised, and then HorovodInternalError on the other ranks.
    """
    return broadcast_with(pickle.dumps, pickle.loads, obj, root_rank, name)


def broadcast_with(
    dumps: Callable[[Any], bytes], loads: Callable[[Any], Any], obj: Any, root_rank: int, name: str | None
) -> Any:
    """`broadcast_object` with another way to pickle: ``dumps`` is called on the root and ``loads`` elsewhere."""
    is_root = rank() == root_rank
    data, failure = _pickled(obj, dumps) if is_root else (_NO_BYTES, None)
    length = ops.broadcast_(_length(data, failure), root_rank, _part(name, "length")).item()
    if failure is not None:
        raise failure
    if length == _FAILED:
        raise HorovodInternalError(f"rank {root_rank} could not pickle its object for a broadcast; see its error")
    data = ops.broadcast_(data if is_root else np.empty(length, np.uint8), root_rank, _part(name, "pickle"))
    return obj if is_root else loads(data.data)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks in rank order, as unpickled copies.

    Raises what pickling raised on the rank where it failed, and then HorovodInternalError on the other ranks.
    """
    data, failure = _pickled(obj)
    lengths = ops.allgather(_length(data, failure), _part(name, "length"))
    if failure is not None:
        raise failure
    failed = np.flatnonzero(lengths == _FAILED).tolist()
    if failed:
        raise HorovodInternalError(
            f"ranks {failed} could not pickle their objects for allgather_object; see their errors"
        )
    gathered = ops.allgather(data, _part(name, "pickle"))
    return [pickle.loads(part.data) for part in np.split(gathered, np.cumsum(lengths)[:-1])]


def synchronize_all(handles: Iterable[Handle]) -> list[Any]:
    """The results of all handles, in order. If some fail, all are waited for before the first error is raised."""
    results: list[Any] = []
    errors: list[HvdError] = []
    for handle in handles:
        try:
            results.append(ops.synchronize(handle))
        except HvdError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


_NO_BYTES: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


def _pickled(obj: Any, dumps: Callable[[Any], bytes] = pickle.dumps) -> tuple[npt.NDArray[np.uint8], Exception | None]:
    try:
        return np.frombuffer(bytearray(dumps(obj)), np.uint8), None
    except Exception as error:  # an object's own __reduce__ may raise anything, and the other ranks must hear of it
        return _NO_BYTES, error


def _length(data: npt.NDArray[np.uint8], failure: Exception | None) -> npt.NDArray[np.int64]:
    return np.array([data.size if failure is None else _FAILED], np.int64)


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"
