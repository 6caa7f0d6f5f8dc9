"""Streams, in which a GPU works in order, and events, which order streams among each other.

A call that is ended by an error of an earlier kernel raises that error, as all calls of CUDA do.
"""

from __future__ import annotations

import ctypes

from hvdlite.cuda import driver
from hvdlite.cuda.context import Context
from hvdlite.errors import HorovodInternalError


class Stream:
    """A stream of hvdlite's own on the GPU of ``context``.

    It has the highest priority, so that a collective, for which other GPUs wait, gets the next free multiprocessor
    before a computation that began earlier. It does not wait for the default stream, nor that for it.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._driver = driver.library()
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        least, greatest = ctypes.c_int(), ctypes.c_int()
        with context.current():
            self._driver.cuCtxGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest))
            self._driver.cuStreamCreateWithPriority(
                ctypes.byref(self._handle), driver.STREAM_NON_BLOCKING, greatest.value
            )

    @property
    def handle(self) -> ctypes.c_void_p:
        """The ``cudaStream_t``. Raises HorovodInternalError after `close`."""
        if self._handle is None:
            raise HorovodInternalError(f"the stream on GPU {self.context.ordinal} is closed")
        return self._handle

    def synchronize(self) -> None:
        """Blocks until the GPU has done all that the stream was given."""
        with self.context.current():
            self._driver.cuStreamSynchronize(self.handle)

    def close(self) -> None:
        """Closes the stream; the GPU still does what it was given. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None and self.context.is_usable:
            with self.context.current():
                self._driver.cuStreamDestroy_v2(handle)


class Event:
    """A point in a stream of the GPU of ``context``, without a time; once recorded it may be recorded again.

    An event that was never recorded is done. Threads that wait for one sleep.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._driver = driver.library()
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        with context.current():
            self._driver.cuEventCreate(
                ctypes.byref(self._handle), driver.EVENT_DISABLE_TIMING | driver.EVENT_BLOCKING_SYNC
            )

    @property
    def handle(self) -> ctypes.c_void_p:
        """The ``cudaEvent_t``. Raises HorovodInternalError after `close`."""
        if self._handle is None:
            raise HorovodInternalError(f"the event on GPU {self._context.ordinal} is closed")
        return self._handle

    def record(self, stream: ctypes.c_void_p) -> None:
        """Makes the event stand for all that ``stream``, of hvdlite or of a framework, has been given until now."""
        with self._context.current():
            self._driver.cuEventRecord(self.handle, stream)

    def hold_back(self, stream: ctypes.c_void_p) -> None:
        """Lets what ``stream`` is given from now on begin only after the event. Returns at once."""
        with self._context.current():
            self._driver.cuStreamWaitEvent(stream, self.handle, 0)

    @property
    def is_done(self) -> bool:
        """True if the GPU has passed the event. Never blocks."""
        with self._context.current():
            return bool(self._driver.cuEventQuery(self.handle) == driver.SUCCESS)

    def wait(self) -> None:
        """Blocks until the GPU has passed the event."""
        with self._context.current():
            self._driver.cuEventSynchronize(self.handle)

    def close(self) -> None:
        """Frees the event; streams that wait for it still do. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None and self._context.is_usable:
            with self._context.current():
                self._driver.cuEventDestroy_v2(handle)
