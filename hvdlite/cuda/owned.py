"""Things that CUDA makes for hvdlite and that a function of the driver frees."""

from __future__ import annotations

import ctypes

from hvdlite.cuda import driver
from hvdlite.cuda.context import Context
from hvdlite.errors import HorovodInternalError


class Owned:
    """Something that CUDA has made for hvdlite in ``context``, and that the driver's function ``_free`` frees."""

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
        """Frees it. The GPU must have done all work that uses it. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None and self.context.is_usable:
            with self.context.current():
                getattr(self._driver, self._free)(handle)
