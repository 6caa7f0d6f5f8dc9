"""One rank's communicator of NCCL, which never blocks the thread that calls it.

A call returns before it has happened, and the communicator is then in progress: NCCL makes connections or launches
kernels in threads of its own. One learns of the end only by asking, which `settle` does, at ever longer intervals.
A launch takes microseconds; only what makes connections, the first collective of a kind, takes longer.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Stream
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.planes.nccl.library import (
    IN_PROGRESS,
    OF_PEERS,
    SCALAR_ON_HOST,
    SUCCESS,
    Comm,
    Config,
    UniqueId,
    failure,
    library,
)
from hvdlite.scope import Scope

_SHORTEST_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 1e-3
_PATIENCE_S: Final = 1.0  # for a call of another thread, which an abort ends


def unique_id() -> bytes:
    """Makes what all ranks of one communicator need; NCCL listens in this process from then on."""
    made = UniqueId()
    library().functions.ncclGetUniqueId(ctypes.byref(made))
    return bytes(made)


class Communicator:
    """Rank ``rank`` of ``size``, on the GPU of ``context``, whose ``stream`` gets the collectives.

    It is in progress until all ranks have made theirs with the same ``unique`` id. One thread makes calls; any thread
    may ask for the `state`, and `abort`. An error that may be the loss of a peer counts after ``grace_s``, in which
    the group may find out who is lost.
    """

    def __init__(
        self, context: Context, stream: Stream, rank: int, size: int, unique: bytes, grace_s: float = 0.0
    ) -> None:
        self._grace_s = grace_s
        self._failing_since: float | None = None
        self._context = context
        self._stream = stream
        self._functions = library().functions
        self._lock = threading.Lock()  # NCCL takes one call at a time
        self._comm = Comm()
        self._is_gone = False
        with context.current():
            self._functions.ncclCommInitRankConfig(
                ctypes.byref(self._comm),
                size,
                UniqueId.from_buffer_copy(unique),
                rank,
                ctypes.byref(Config.without_blocking()),
            )

    def state(self) -> int | None:
        """Returns `SUCCESS`, `IN_PROGRESS` or what went wrong; None once the communicator is gone."""
        with self._lock:
            return None if self._is_gone else self._state()

    def error(self, what: str) -> HorovodInternalError | None:
        """Returns the error that ended ``what``, the last call; None if there is none, or it does not count yet."""
        with self._lock:
            state = SUCCESS if self._is_gone else self._state()
            if state in (SUCCESS, IN_PROGRESS):
                return None
            now = time.monotonic()
            if self._failing_since is None:
                self._failing_since = now
            if state in OF_PEERS and now - self._failing_since < self._grace_s:
                return None
            return failure(state, what, self._comm)

    def settle(self, what: str, scope: Scope, given_up: Callable[[], HvdError | None]) -> None:
        """Waits until ``what``, the last call, has happened, or raises.

        Raises HorovodInternalError if it failed, or has not happened in time, and the error that ``given_up`` returns
        if it does.
        """
        pause_s = 0.0
        while (state := self.state()) != SUCCESS:
            error = given_up() or self.error(what)
            if error is not None:
                raise error
            if state is None:
                raise _closed(what)
            if scope.is_over:
                raise HorovodInternalError(
                    f"{what} has not begun within HVDLITE_PROGRESS_TIMEOUT: NCCL still waits for other ranks; see "
                    "whether they run, and with NCCL_DEBUG=INFO over which network they connect; "
                    "HVDLITE_GPU_PLANE=staged does without NCCL, more slowly"
                )
            time.sleep(pause_s)
            pause_s = min(max(2 * pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    @contextmanager
    def grouped(self) -> Iterator[None]:
        """A context whose calls NCCL gets as one; `settle` must follow."""
        with self._calling("a collective"):
            self._functions.ncclGroupStart()
            try:
                yield
            finally:
                self._functions.ncclGroupEnd()

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of NCCL whose last parameters are the communicator and the stream, in `grouped`."""
        getattr(self._functions, name)(*arguments, self._comm, self._stream.handle)

    @contextmanager
    def multiplying(self, scalar: Any, dtype: int) -> Iterator[int]:
        """A context with the number of an operation that adds elements times ``scalar``, a ctypes' number."""
        operation = ctypes.c_int()
        with self._calling("a reduction"):
            self._functions.ncclRedOpCreatePreMulSum(
                ctypes.byref(operation), ctypes.byref(scalar), dtype, SCALAR_ON_HOST, self._comm
            )
        try:
            yield operation.value
        finally:
            with self._lock, self._context.current():
                if not self._is_gone:
                    self._functions.ncclRedOpDestroy(operation, self._comm)

    def abort(self) -> None:
        """Ends what the GPU does for this communicator, and frees it. May block for a moment, and be called twice."""
        has_lock = self._lock.acquire(timeout=_PATIENCE_S)  # a call that hangs keeps it until the abort
        try:
            is_first, self._is_gone = not self._is_gone, True
            if is_first and self._context.is_usable:
                with self._context.current():
                    self._functions.ncclCommAbort(self._comm)
        finally:
            if has_lock:
                self._lock.release()

    def close(self, scope: Scope) -> None:
        """Frees the communicator when the GPU is done, or aborts it at the end of ``scope``. May be called twice."""
        if self._is_gone or not self._context.is_usable:
            return
        try:
            with self._calling("closing the communicator"):
                self._functions.ncclCommFinalize(self._comm)
            self.settle("closing the communicator", scope, lambda: None)
            with self._calling("closing the communicator"):
                self._is_gone = True
                self._functions.ncclCommDestroy(self._comm)
        except HorovodInternalError:
            self.abort()

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        with self._lock, self._context.current():
            if self._is_gone:
                raise _closed(what)
            yield

    def _state(self) -> int:
        found = ctypes.c_int()
        self._functions.ncclCommGetAsyncError(self._comm, ctypes.byref(found))
        return found.value


def _closed(what: str) -> HorovodInternalError:
    return HorovodInternalError(f"{what} failed: the communicator was closed")
