"""Kernels of hvdlite's own: PTX that the driver compiles for the GPU, and their launches."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

from hvdlite.cuda.context import Context
from hvdlite.cuda.owned import Owned
from hvdlite.cuda.streams import Stream


class Kernel(Owned):
    """The kernel ``name`` of the PTX ``text``, on the GPU of ``context``; its one parameter is a structure.

    Loading takes milliseconds, because the driver compiles it, unless the driver has the result of an earlier process.
    """

    _kind = "kernel"
    _free = "cuModuleUnload"

    def __init__(self, context: Context, text: str, name: str) -> None:
        super().__init__(context)
        self._function = ctypes.c_void_p()
        with context.current(), ExitStack() as undo:
            self._driver.cuModuleLoadData(ctypes.byref(self.handle), text.encode())
            undo.callback(self.close)
            self._driver.cuModuleGetFunction(ctypes.byref(self._function), self.handle, name.encode())
            undo.pop_all()

    def launch(self, stream: Stream, blocks: int, threads: int, parameter: int) -> None:
        """Has ``stream`` run the kernel. CUDA copies the structure at the address ``parameter`` before this returns.

        The context must be current: several launches in one block of `Context.current` cost fewer calls.
        """
        parameters = (ctypes.c_void_p * 1)(parameter)
        self._driver.cuLaunchKernel(self._function, blocks, 1, 1, threads, 1, 1, 0, stream.handle, parameters, None)
