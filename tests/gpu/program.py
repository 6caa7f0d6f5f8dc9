"""The code of a rank with a GPU: the whole of hvdlite over the fakes of CUDA and NCCL, in a session that has begun."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

import hvdlite as hvd
from hvdlite.cuda.context import Context
from hvdlite.cuda.memory import copy
from hvdlite.cuda.presence import KIND
from hvdlite.cuda.streams import Stream
from hvdlite.groups import choose
from hvdlite.ops import Collectives
from hvdlite.planes.base import DataPlane
from hvdlite.planes.nccl.plane import NcclPlane
from hvdlite.planes.staged.plane import StagedPlane
from hvdlite.session import current
from hvdlite.tensors.device import Device
from tests.gpu.fake import Fakes, GpuArray
from tests.gpu.streams import DefaultStream
from tests.harness.device import DeviceAdapter
from tests.harness.patience import until
from tests.multiproc.on_device import has_no_threads


class Gpu:
    """This rank's GPU, with a front end that has no streams."""

    looks_at_files = False  # of which the fakes have none in /dev

    def __init__(self, folder: str, ordinal: int | None = None) -> None:
        """``ordinal`` is the GPU that the program chooses; without it, the one of its rank."""
        self.fakes = Fakes(folder)
        if not self.looks_at_files:
            choose.absence_of_gpus = str
        hvd.init()
        assert not self.fakes.cuda.fake_is_initialized()  # this process may still fork
        self.fakes.cuda.cuInit(0)  # by the program
        self.ordinal = hvd.local_rank() % 2 if ordinal is None else ordinal
        device = Device(KIND, self.ordinal)
        self.collectives = Collectives[GpuArray](DeviceAdapter(GpuArray, self.empty, device))

    def empty(self, shape: Any, dtype: Any) -> GpuArray:
        return self.fakes.empty(shape, dtype, self.ordinal)

    def array(self, values: Any) -> GpuArray:
        return self.fakes.array(np.asarray(values), self.ordinal)

    @property
    def plane(self) -> DataPlane:
        return current().everyone.planes[KIND]

    @property
    def nccl(self) -> NcclPlane:
        assert isinstance(self.plane, NcclPlane)
        return self.plane

    def leave(self) -> None:
        """Shuts down, and holds that nothing is left."""
        hvd.shutdown()
        until(has_no_threads)
        held = self.fakes.held()
        assert {name: held[name] for name in ("contexts", "streams", "events", "modules", "communicators")} == {
            "contexts": 0,
            "streams": 0,
            "events": 0,
            "modules": 0,
            "communicators": 0,
        }


class ProgramStreams:
    """The streams of a program on its GPU. Each thread has a current one, as in PyTorch."""

    def __init__(self, fakes: Fakes, ordinal: int) -> None:
        self.fakes = fakes
        self.context = Context(ordinal)
        self._of_thread = threading.local()

    @contextmanager
    def opened(self) -> Iterator[Stream]:
        """A new stream, which is this thread's current one in the context."""
        before = getattr(self._of_thread, "stream", None)
        self._of_thread.stream = stream = Stream(self.context)
        try:
            yield stream
            stream.synchronize()
        finally:
            self._of_thread.stream = before
            stream.close()

    @contextmanager
    def default(self) -> Iterator[Stream]:
        """The default stream, which is this thread's current one in the context: PyTorch's usual one."""
        before = getattr(self._of_thread, "stream", None)
        self._of_thread.stream = stream = DefaultStream(self.context)
        try:
            yield stream
            stream.synchronize()
        finally:
            self._of_thread.stream = before

    def current(self) -> int:
        return self._of_thread.stream.handle.value or 0

    @contextmanager
    def allocating(self) -> Iterator[None]:
        self._of_thread.is_aside = True
        try:
            yield
        finally:
            self._of_thread.is_aside = False

    @property
    def is_aside(self) -> bool:
        return getattr(self._of_thread, "is_aside", False)

    def free(self, address: int, stream: int) -> None:
        with self.context.current():
            self.fakes.cuda.cuMemFreeAsync(ctypes.c_uint64(address), ctypes.c_void_p(stream))

    def use(self, result: Any) -> None:
        for each in result if isinstance(result, tuple) else (result,):
            each.free_in(self.current())


class StreamedArray(GpuArray):
    """An array of a program with streams. Its memory is used again, and poisoned, as soon as it is freed."""

    def __init__(self, streams: ProgramStreams, shape: Sequence[int] | int, dtype: npt.DTypeLike, device: int) -> None:
        super().__init__(streams.fakes, shape, dtype, device)
        self.streams = streams
        self.was_allocated_aside = streams.is_aside
        self._freeing: weakref.finalize[..., Any] | None = None

    def free_in(self, stream: int) -> None:
        """Frees the memory in the order of ``stream``, as PyTorch does after ``record_stream``."""
        if self._freeing is not None:
            self._freeing.detach()
        self.finalizer.detach()
        self._freeing = weakref.finalize(self, self.streams.free, self.address, stream)


class Program(Gpu):
    """This rank's GPU, with a front end whose work is in streams."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.streams = ProgramStreams(self.fakes, self.ordinal)
        adapter = DeviceAdapter(StreamedArray, self.empty, Device(KIND, self.ordinal))
        self.collectives: Any = Collectives[StreamedArray](adapter)

    def empty(self, shape: Any, dtype: Any) -> StreamedArray:
        return StreamedArray(self.streams, shape, dtype, self.ordinal)

    def produced(self, values: Any, stream: Stream) -> StreamedArray:
        """An array that has the ``values`` once ``stream`` has got there."""
        source = self.array(values)
        made = self.empty(source.shape, source.dtype)
        copy(made.address, source.address, source.nbytes, stream)
        source.free_in(stream.handle.value or 0)
        return made

    def consumed(self, array: StreamedArray, stream: Stream) -> GpuArray:
        """A copy that ``stream`` makes when it gets there."""
        made = self.fakes.empty(array.shape, array.dtype, self.ordinal)
        copy(made.address, array.address, array.nbytes, stream)
        return made

    def array(self, values: Any) -> StreamedArray:
        held = np.asarray(values)
        made = self.empty(held.shape, held.dtype)
        made.write(held)
        return made

    def hold(self, stream: Stream) -> None:
        with self.streams.context.current():  # of which the default stream is
            self.fakes.cuda.fake_hold(stream.handle)

    def release(self, stream: Stream) -> None:
        with self.streams.context.current():
            self.fakes.cuda.fake_release(stream.handle)

    @contextmanager
    def letting_go(self, stream: Stream) -> Iterator[None]:
        """Releases ``stream`` as soon as a plane has a collective without which ``synchronize`` does not return."""
        if not isinstance(plane := self.plane, StagedPlane):
            yield
            return

        def let_go() -> None:
            until(lambda: plane._taken)
            self.release(stream)

        thread = threading.Thread(target=let_go)
        thread.start()
        yield
        thread.join()

    @property
    def plane_stream(self) -> Stream:
        assert self.nccl._gpu is not None
        return self.nccl._gpu.stream

    def leave(self) -> None:
        self.streams.context.close()
        super().leave()
