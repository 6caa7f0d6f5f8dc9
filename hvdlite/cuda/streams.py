"""Streams, in which a GPU works in order, and events, which order streams among each other.

A call may raise the error of an earlier kernel, as all calls of CUDA do.
"""

from __future__ import annotations

import ctypes

from hvdlite.cuda import driver
from hvdlite.cuda.context import Context
from hvdlite.cuda.owned import Owned


class Stream(Owned):
    """A stream of hvdlite's own on the GPU of ``context``.

    It has the highest priority, so that a collective, for which other GPUs wait, gets the next free multiprocessor
    before a computation that began earlier. It and the default stream do not wait for each other.
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


class Event(Owned):
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
        """Makes the event stand for the work that ``stream``, hvdlite's or a framework's, has been given until now."""
        with self.context.pushed():
            self._driver.cuEventRecord(self.handle, stream)

    def record_callers(self, stream: ctypes.c_void_p) -> None:
        """Does as `record` for a stream of the program.

        Raises ValueError, and leaves the capture alone, if a graph captures the stream.
        """
        with self.context.pushed():
            if self._is_captured(stream):
                raise ValueError(
                    "a CUDA graph captures the current stream, and collectives of hvdlite cannot be part of one; "
                    "submit the tensor before the capture or after it"
                )
            self._driver.cuEventRecord(self.handle, stream)

    def hold_back(self, stream: ctypes.c_void_p) -> None:
        """Lets what ``stream`` is given from now on begin only after the event. Returns at once."""
        with self.context.pushed():
            self._driver.cuStreamWaitEvent(stream, self.handle, 0)

    def hold_back_callers(self, stream: ctypes.c_void_p) -> None:
        """Does as `hold_back` for a stream of the program.

        Raises ValueError, and leaves the capture alone, if a graph captures the stream and the event is still to come.
        """
        with self.context.pushed():
            captured = self._is_captured(stream)
            if not captured:
                self._driver.cuStreamWaitEvent(stream, self.handle, 0)
        if captured and not self.is_done:
            raise ValueError(
                "a CUDA graph captures the current stream, which cannot wait for a collective outside of the graph; "
                "synchronize the handle before the capture"
            )

    @property
    def is_done(self) -> bool:
        """True if the GPU has passed the event. Never blocks."""
        with self.context.current():
            return bool(self._driver.cuEventQuery(self.handle) == driver.SUCCESS)

    def wait(self) -> None:
        """Blocks until the GPU has passed the event."""
        with self.context.current():
            self._driver.cuEventSynchronize(self.handle)

    def _is_captured(self, stream: ctypes.c_void_p) -> bool:
        """True if a graph captures ``stream``, or a stream for which it, as the default stream, would wait."""
        capture = ctypes.c_int()
        status = self._driver.cuStreamIsCapturing(stream, ctypes.byref(capture))
        return bool(status == driver.CAPTURE_IMPLICIT or capture.value != driver.CAPTURE_NONE)
