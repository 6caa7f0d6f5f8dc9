"""Streams, in which a GPU works in order, and events, which order streams among each other.

A call that is ended by an error of an earlier kernel raises that error, as all calls of CUDA do.
"""

from __future__ import annotations

import ctypes

from hvdlite.cuda import driver
from hvdlite.cuda.context import Context
from hvdlite.errors import HorovodInternalError


class _Owned:
    """What CUDA has made for hvdlite in ``context``, and a function of the driver frees."""

    _kind: str
    _free: str

    def __init__(self, context: Context) -> None:
        self.context = context
        self._driver = driver.library()
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()

    @property
    def handle(self) -> ctypes.c_void_p:
        """CUDA's own handle. Raises HorovodInternalError after `close`."""
        if self._handle is None:
            raise HorovodInternalError(f"the {self._kind} on GPU {self.context.ordinal} is closed")
        return self._handle

    def close(self) -> None:
        """Frees it, when the GPU has done what it was given and nobody waits for it. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None and self.context.is_usable:
            with self.context.current():
                getattr(self._driver, self._free)(handle)


class Stream(_Owned):
    """A stream of hvdlite's own on the GPU of ``context``.

    It has the highest priority, so that a collective, for which other GPUs wait, gets the next free multiprocessor
    before a computation that began earlier. It does not wait for the default stream, nor that for it.
    """

    _kind = "stream"
    _free = "cuStreamDestroy_v2"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        least, greatest = ctypes.c_int(), ctypes.c_int()
        with context.current():
            self._driver.cuCtxGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest))
            self._driver.cuStreamCreateWithPriority(
                ctypes.byref(self.handle), driver.STREAM_NON_BLOCKING, greatest.value
            )

    def synchronize(self) -> None:
        """Blocks until the GPU has done all that the stream was given."""
        with self.context.current():
            self._driver.cuStreamSynchronize(self.handle)


class Event(_Owned):
    """A point in a stream of the GPU of ``context``, without a time; once recorded it may be recorded again.

    An event that was never recorded is done. Threads that wait for one sleep.
    """

    _kind = "event"
    _free = "cuEventDestroy_v2"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        with context.current():
            self._driver.cuEventCreate(
                ctypes.byref(self.handle), driver.EVENT_DISABLE_TIMING | driver.EVENT_BLOCKING_SYNC
            )

    def record(self, stream: ctypes.c_void_p) -> None:
        """Makes the event stand for all that ``stream``, of hvdlite or of a framework, has been given until now."""
        with self.context.current():
            self._driver.cuEventRecord(self.handle, stream)

    def hold_back(self, stream: ctypes.c_void_p) -> None:
        """Lets what ``stream`` is given from now on begin only after the event. Returns at once."""
        with self.context.current():
            self._driver.cuStreamWaitEvent(stream, self.handle, 0)

    @property
    def is_done(self) -> bool:
        """True if the GPU has passed the event. Never blocks."""
        with self.context.current():
            return bool(self._driver.cuEventQuery(self.handle) == driver.SUCCESS)

    def wait(self) -> None:
        """Blocks until the GPU has passed the event."""
        with self.context.current():
            self._driver.cuEventSynchronize(self.handle)
