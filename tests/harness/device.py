"""A device for tests: memory that host code cannot touch, and a plane that works on it by itself.

The pages of the device are mapped twice. hvdlite has addresses in a mapping without access, where any read or
write is a SIGSEGV; the device itself uses the other mapping. So hvdlite treats it as it would a GPU: a front end
has `DeviceArray` for tensors and `DeviceAdapter` for an adapter, and `install` gives this process such a device.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.errors import HvdError
from hvdlite.groups.choose import BY_DEVICE, plane_part
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.memory.free_list import FreeList
from hvdlite.ops import Collectives
from hvdlite.planes import base
from hvdlite.planes.base import DataPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Buffer, Matrix, NotAnArray, Spans
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import DType, element_type

Array = npt.NDArray[Any]

DEVICE = Device("toy")

_NBYTES = 1 << 30  # of addresses; pages are there once they are written
_LINE = 64


class DeviceMemory:
    """The pages, and those of them that are free. Any thread may allocate."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        fd = os.memfd_create("device")
        os.truncate(fd, _NBYTES)
        no_access = 0
        self._seen = libc.mmap(None, _NBYTES, no_access, mmap.MAP_SHARED, fd, 0)
        self._pages = mmap.mmap(fd, _NBYTES)
        os.close(fd)
        self._used = np.frombuffer(self._pages, np.uint8)
        self._free = FreeList(_NBYTES)
        self._freed: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> int:
        """An address that the host has no access to."""
        with self._lock:
            while self._freed:
                self._free.give(*self._freed.popleft())
            at = self._free.take(max(nbytes, 1), _LINE)
        assert at is not None, "the device has no memory left"
        return int(self._seen) + at

    def free(self, address: int, nbytes: int) -> None:
        """Gives memory back at the next allocation: a finalizer may run in the middle of one."""
        self._freed.append((address - self._seen, max(nbytes, 1)))

    def bytes_at(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The bytes there, as the device sees them."""
        begin = address - self._seen
        assert 0 <= begin <= begin + nbytes <= _NBYTES, f"{address:#x} is not an address of the device"
        return np.asarray(self._used[begin : begin + nbytes])

    def used_by_device(self, spans: Spans) -> Spans:
        """``spans`` with the device's own addresses of the same bytes."""

        def own(address: int, nbytes: int) -> int:
            return self.bytes_at(address, nbytes).ctypes.data if address and nbytes else 0

        rows = [(own(read, nbytes), own(write, nbytes), nbytes) for read, write, nbytes in spans.tolist()]
        return np.array(rows, np.uint64).reshape(-1, 3)

    def close(self) -> None:
        del self._used
        self._pages.close()
        ctypes.CDLL(None).munmap(ctypes.c_void_p(self._seen), ctypes.c_size_t(_NBYTES))


@cache
def memory() -> DeviceMemory:
    """The memory of this process, which must not fork afterwards, since a child would share the pages."""
    return DeviceMemory()


class DeviceArray:
    """A tensor on the device, and the owner of its memory."""

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.address = memory().allocate(self.nbytes)
        weakref.finalize(self, memory().free, self.address, self.nbytes)

    @staticmethod
    def of(array: Array) -> DeviceArray:
        """A copy of what is in the host's memory."""
        made = DeviceArray(array.shape, array.dtype)
        made.write(array)
        return made

    def write(self, values: Array) -> None:
        self.on_device()[...] = values

    def on_device(self) -> Array:
        """The values as the device sees them."""
        return memory().bytes_at(self.address, self.nbytes).view(self.dtype).reshape(self.shape)

    def data_ptr(self) -> int:
        return self.address

    def __len__(self) -> int:
        return self.nbytes


class DeviceAdapter:
    """The front end of a device: of arrays of class ``kind``, which ``make`` makes of a shape and a dtype."""

    finish = None

    def __init__(
        self, kind: type[Any] = DeviceArray, make: Callable[..., Any] = DeviceArray, device: Device = DEVICE
    ) -> None:
        self._kind, self._make, self._device = kind, make, device

    def buffer(self, tensor: Any, is_written: bool = False) -> Buffer:
        if not isinstance(tensor, self._kind):
            raise NotAnArray(f"expected a {self._kind.__name__}, got {type(tensor).__name__}")
        return tensor.address, element_type(tensor.dtype), tensor.shape, tensor, self._device

    def of_number(self, value: Any) -> None:
        return None

    def empty(self, shape: Sequence[int], like: Any) -> tuple[Any, int]:
        output = self._make(shape, like.dtype)
        return output, output.address

    def counts(self, values: Sequence[int]) -> Any:
        made = self._make((len(values),), np.int32)
        made.write(np.array(values, np.int32))
        return made


collectives = Collectives[DeviceArray](DeviceAdapter())


class _Event:
    """The signal of the device that it has done a collective."""

    def __init__(self) -> None:
        self._is_done = threading.Event()
        self._error: BaseException | None = None

    def signal(self, error: BaseException | None) -> None:
        self._error = error
        self._is_done.set()

    def wait(self) -> None:
        self._is_done.wait()
        if self._error is not None:
            raise self._error


class DevicePlane(base.DevicePlane):
    """Makes the device, a thread, do collectives one after the other, through ``inner``.

    ``given`` has the kind and the number of tensors of each.
    """

    name = "device"

    def __init__(self, inner: DataPlane) -> None:
        self.rank, self.size = inner.rank, inner.size
        self.given: list[tuple[str, int]] = []
        self._inner = inner
        self._due: queue.SimpleQueue[tuple[Callable[[], Any], _Event] | None] = queue.SimpleQueue()
        self._may_work = threading.Event()
        self._may_work.set()
        self._device = threading.Thread(target=self._work, name="toy-device", daemon=True)
        self._device.start()

    def hold(self) -> None:
        """Keeps the device from beginning anything until `release`."""
        self._may_work.clear()

    def release(self) -> None:
        self._may_work.set()

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> _Event:
        own = memory().used_by_device(spans)
        return self._give("allreduce", len(own), lambda: self._inner.allreduce(own, dtype, op, prescale, postscale))

    def allgather(self, streams: Sequence[Spans]) -> _Event:
        own = [memory().used_by_device(spans) for spans in streams]
        return self._give("allgather", len(own[self.rank]), lambda: self._inner.allgather(own))

    def reducescatter(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float) -> _Event:
        own = [memory().used_by_device(spans) for spans in parts]
        count = len(own[self.rank])
        return self._give(
            "reducescatter", count, lambda: self._inner.reducescatter(own, dtype, op, prescale, postscale)
        )

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> _Event:
        out = [memory().used_by_device(spans) for spans in sends]
        into = [memory().used_by_device(spans) for spans in receives]
        return self._give("alltoall", len(out[self.rank]), lambda: self._inner.alltoall(out, into, matrix))

    def barrier(self) -> _Event:
        return self._give("barrier", 0, self._inner.barrier)

    def zeros(self, nbytes: int, dtype: DType = DType.UINT8) -> tuple[int, DeviceArray]:
        made = DeviceArray((nbytes,), np.uint8)
        self._give("zeros", 1, lambda: made.on_device().fill(0))
        return made.address, made

    def abort(self, error: HvdError) -> None:
        self._error = self._error or error
        self._inner.abort(error)
        self.release()

    def close(self) -> None:
        self.release()
        self._due.put(None)
        self._device.join()
        self._inner.close()

    def _give(self, kind: str, count: int, work: Callable[[], Any]) -> _Event:
        self._refuse_if_aborted()
        self.given.append((kind, count))
        event = _Event()
        self._due.put((work, event))
        return event

    def _work(self) -> None:
        while (item := self._due.get()) is not None:
            work, event = item
            self._may_work.wait()
            try:
                work()
            except Exception as error:  # the edge of a thread; who waits for the event raises it
                event.signal(error)
            else:
                event.signal(None)


class DevicePart(Part[DataPlane]):
    """The plane of a group before it is connected."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        everyone = range(membership.size)
        self._inner = plane_part(membership.among(everyone, "device"), replace(options))

    def bind(self) -> Address:
        return self._inner.bind()

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        return DevicePlane(self._inner.connect(addresses, scope))

    def close(self) -> None:
        self._inner.close()


def install() -> None:
    """Gives this process a device, before `hvdlite.init`."""
    BY_DEVICE[DEVICE.kind] = DevicePart
