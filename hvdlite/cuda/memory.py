"""Memory of a GPU, and memory of the host that a GPU can reach."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

from hvdlite.cuda import driver
from hvdlite.cuda.context import Context
from hvdlite.cuda.owned import Owned
from hvdlite.cuda.presence import KIND
from hvdlite.cuda.streams import Stream
from hvdlite.errors import HorovodInternalError
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import DType


def device_of(address: int) -> Device | None:
    """Returns the GPU whose memory ``address`` is in; None for memory of the host, pinned or not."""
    of = driver.library().cuPointerGetAttribute
    memory, ordinal = ctypes.c_uint(), ctypes.c_int()
    status = of(ctypes.byref(memory), driver.POINTER_MEMORY_TYPE, address)
    if status != driver.SUCCESS or memory.value != driver.MEMORY_ON_DEVICE:
        return None
    of(ctypes.byref(ordinal), driver.POINTER_DEVICE_ORDINAL, address)
    return Device(KIND, ordinal.value)


class PinnedMemory(Owned):
    """``nbytes`` of the host's memory that stay in place, so that GPUs copy from and to it by themselves.

    No copy may use it any more when it is closed.
    """

    _kind = "pinned memory"
    _free = "cuMemFreeHost"

    def __init__(self, context: Context, nbytes: int) -> None:
        super().__init__(context)
        self.nbytes = nbytes
        with context.current():
            self._driver.cuMemHostAlloc(ctypes.byref(self.handle), max(nbytes, 1), driver.HOST_ALLOC_PORTABLE)

    @property
    def address(self) -> int:
        """Returns the address, the same for the host and its GPUs. Raises HorovodInternalError after `close`."""
        return self.handle.value or 0


class DeviceMemory:
    """``nbytes`` of a GPU's memory for work in ``stream``, in whose order it is allocated and freed."""

    def __init__(self, stream: Stream, nbytes: int) -> None:
        self.nbytes = nbytes
        self._stream = stream
        self._driver = driver.library()
        self._address = driver.Address()
        with stream.context.current():
            self._driver.cuMemAllocAsync(ctypes.byref(self._address), max(nbytes, 1), stream.handle)

    @property
    def address(self) -> int:
        """Returns the address; 0 after `close`."""
        return self._address.value

    def fill(self, byte: int) -> None:
        """Writes ``byte`` everywhere, in the stream."""
        with self._stream.context.current():
            self._driver.cuMemsetD8Async(self._address, byte, self.nbytes, self._stream.handle)

    def fill_zeros(self, dtype: DType) -> None:
        """Writes zeros of ``dtype`` everywhere, in the stream; floats are -0.0, as in `DataPlane.zeros`."""
        self.fill(0)
        if dtype.is_floating and self.nbytes:
            itemsize = dtype.itemsize
            signs = driver.Address(self.address + itemsize - 1)
            with self._stream.context.current():
                self._driver.cuMemsetD2D8Async(signs, itemsize, 0x80, 1, self.nbytes // itemsize, self._stream.handle)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with suppress(HorovodInternalError):
                self.close()

    def close(self) -> None:
        """Frees the memory after all that the stream has been given until now. May be called twice."""
        address, self._address = self._address, driver.Address()
        if address.value and self._stream.context.is_usable:
            with self._stream.context.current():
                self._driver.cuMemFreeAsync(address, self._stream.handle)


def copy(target: int, source: int, nbytes: int, stream: Stream) -> None:
    """Copies between memory of any kind, in ``stream``. Memory of the host that is not pinned may block it."""
    with stream.context.current():
        driver.library().cuMemcpyAsync(target, source, nbytes, stream.handle)
