"""The CUDA context of one GPU: the primary one, which frameworks and NCCL use too."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from hvdlite.cuda import driver
from hvdlite.errors import HorovodInternalError


class Context:
    """The primary context of GPU ``ordinal``, as this process numbers what it sees.

    Most calls of CUDA are for the context that is current in their thread. hvdlite makes them in its own threads and in
    the user's, whose context must afterwards be what it was before. So they are made within `current`.
    A forked child cannot use CUDA: there `current` raises, and `close` does nothing.
    """

    def __init__(self, ordinal: int) -> None:
        """Raises NativeUnavailable without a driver, and HorovodInternalError if there is no such GPU."""
        self.ordinal = ordinal
        self._driver = driver.library()
        self._owner_pid = os.getpid()
        self._device = ctypes.c_int()
        self._driver.cuDeviceGet(ctypes.byref(self._device), ordinal)
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._handle), self._device)

    @property
    def is_usable(self) -> bool:
        """True until `close`, in the process that has made the context."""
        return self._handle is not None and os.getpid() == self._owner_pid

    def identity(self) -> str:
        """Returns the UUID of the GPU, or of the instance of a GPU."""
        found = driver.Uuid()
        self._driver.cuDeviceGetUuid_v2(ctypes.byref(found), self._device)
        return str(uuid.UUID(bytes=bytes(found)))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes this the current context of the calling thread.

        While any thread captures a graph, CUDA would otherwise refuse some calls and invalidate the capture, because
        their work could belong to the graph. hvdlite's work does not.
        """
        mode = ctypes.c_int(driver.CAPTURE_RELAXED)
        with self.pushed():
            self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            try:
                yield
            finally:
                self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    @contextmanager
    def pushed(self) -> Iterator[None]:
        """Does as `current` for calls that CUDA never refuses: those that only give a stream work."""
        if not self.is_usable:
            reason = "it is closed" if self._handle is None else "this process is a fork of the one that uses it"
            raise HorovodInternalError(f"GPU {self.ordinal} cannot be used: {reason}; call hvdlite.init() here first.")
        self._driver.cuCtxPushCurrent_v2(self._handle)
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def close(self) -> None:
        """Releases the context, which frameworks in this process go on using. May be called twice."""
        if self.is_usable:
            self._handle = None
            self._driver.cuDevicePrimaryCtxRelease_v2(self._device)
