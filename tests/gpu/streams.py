"""Streams that programs have and hvdlite has not."""

from __future__ import annotations

import ctypes

from hvdlite.cuda import driver
from hvdlite.cuda.context import Context
from hvdlite.cuda.owned import Owned
from hvdlite.cuda.streams import Stream


class DefaultStream(Stream):
    """The default stream of a GPU, which has no handle."""

    def __init__(self, context: Context) -> None:
        Owned.__init__(self, context)


class BlockingStream(Stream):
    """A stream of a program that waits for the default one, and that for it."""

    def __init__(self, context: Context) -> None:
        Owned.__init__(self, context)
        with context.current():
            driver.library().cuStreamCreateWithPriority(ctypes.byref(self.handle), 0, 0)
