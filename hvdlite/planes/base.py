"""The interface and the guarantees of every data plane.

A plane belongs to one group of ``size`` ranks and is one of them, ``rank``. Its collectives

- run one at a time, called by one thread (the executor), in the same order with matching arguments on every rank;
- block until this rank's part is done: outputs are written and inputs may be reused or freed. On a device that works
  by itself they may return earlier, with a `Completion` that blocks in their place; the device does the collectives in
  order;
- release the GIL while they wait or move bytes;
- leave bit-identical results on all ranks;
- end early, with the error given to `abort`, when `abort` is called from any other thread, and every later
  collective raises the same error at once;
- raise `HorovodInternalError` if no byte moves for ``progress_timeout`` seconds.

Memory is given as spans: rows of (address to read, address to write, bytes). A collective works on their virtual
concatenation, so that a batch of many tensors is one call and nothing is copied into a fusion buffer. Spans may be
empty. The memory that one row reads and the memory that it writes are the same or do not overlap. Rows do not overlap
each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from hvdlite.errors import HvdError
from hvdlite.members.ranges import shortened
from hvdlite.tensors.buffer import Matrix, Spans, address_of
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import FLOAT8, DType, ElementType

if TYPE_CHECKING:
    from hvdlite.memory.arena import Regions


class Completion(Protocol):
    """The rest of a collective that a device has been given."""

    def wait(self) -> None:
        """Waits until the collective is done on this rank, or does it, and raises if it failed. Releases the GIL.

        Called once for each collective, in their order.
        """


class DataPlane(ABC):
    """The collectives of one group over the memory of one kind of device.

    `close` may be called twice.
    """

    name: str
    rank: int
    size: int
    _error: HvdError | None = None
    """The first failure, or the error given to `abort`. Every later collective raises it."""

    @property
    def error(self) -> HvdError | None:
        """Returns what has ended the plane, if anything has. Any thread."""
        return self._error

    @property
    def counters(self) -> Mapping[str, int]:
        """Its counters by name. Any thread may read them, at any time."""
        return {}

    @abstractmethod
    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> Completion | None:
        """Writes ``postscale * reduce(prescale * x_rank)`` over all ranks to every rank.

        ``op`` is Sum, Min, Max, Product, or for integers Average, which is a sum too (as an average of floats is) but
        does not wrap around before it is scaled, and is divided by n exactly if ``postscale`` is 1 / n. Spans have
        the same bytes row by row on every rank. float16 and bfloat16 accumulate in float32 and round once. Integers
        with a scale other than 1 are scaled in double, truncated toward zero, and saturate; otherwise exact with
        wrap-around. bool is 0 or 1: Sum and Max are *or*, Product and Min are *and*.
        """

    @abstractmethod
    def allgather(self, streams: Sequence[Spans]) -> Completion | None:
        """Copies the contribution of each rank to every rank.

        ``streams[r]`` are the spans of rank ``r``'s contribution: for ``r == self.rank`` rows read and write local
        memory (equal addresses: nothing to copy), for others the reading address is 0 and ignored. Row ``i`` of
        stream ``r`` has the same bytes on every rank; streams may differ in length and be empty. A broadcast is an
        allgather in which only the root's stream is not empty.
        """

    @abstractmethod
    def reducescatter(
        self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float
    ) -> Completion | None:
        """Reduces as `allreduce` does and writes each part of the result on one rank only.

        ``parts[r]`` are the spans of what rank ``r`` gets: row ``i`` of part ``r`` has the same bytes on every rank.
        All rows are read. Only rows of ``parts[self.rank]`` are written; the writing address of other rows is ignored.
        Parts may differ in length and be empty. A reduction to one root is the case of one part that is not empty.
        """

    @abstractmethod
    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> Completion | None:
        """Sends different bytes from each rank to each rank.

        ``sends[r]`` is what goes to rank ``r``: rows whose reading address and bytes count. ``receives[r]`` is where
        what rank ``r`` sends goes: rows whose writing address and bytes count. ``matrix[s, d]`` are the bytes from rank
        ``s`` to rank ``d``, equal on all ranks; rows may divide them differently on the two sides. What is read and
        what is written do not overlap. Gather, scatter and a message from one rank to another are cases of it.
        """

    @abstractmethod
    def barrier(self) -> Completion | None:
        """Returns after every rank has entered."""

    def zeros(self, nbytes: int, dtype: DType = DType.UINT8) -> tuple[int, Any]:
        """Returns the address of ``nbytes`` zeros on the plane's device, and their owner. Executor thread only.

        Floats are -0.0, which changes no sum at all, not even one that is -0.0.
        """
        if dtype.is_floating:
            bits = 8 * dtype.itemsize
            floats = np.full(8 * nbytes // bits, 1 << bits - 1, f"uint{bits}")
            return address_of(floats), floats
        zeros = np.zeros(nbytes, np.uint8)
        return address_of(zeros), zeros

    def unsupported_reduction(
        self, device: Device, dtype: ElementType, op: int, prescale: float, postscale: float
    ) -> str:
        """Returns why the plane does not reduce so, and what to pass instead; empty if it does. Any thread."""
        return f"dtype {dtype} is added by NCCL only; pass tensor.float()" if dtype in FLOAT8 else ""

    def attach_arena(self, regions: Regions) -> None:  # noqa: B027 - most planes copy all tensors
        """Lets collectives reduce tensors in ``regions``, the ranks' parts of an arena, without copying."""

    @abstractmethod
    def abort(self, error: HvdError) -> None:
        """Makes this rank's running collective and all later ones raise ``error``. Any thread; never blocks."""

    @abstractmethod
    def close(self) -> None:
        """Frees memory, descriptors and sockets. Must not be called while a collective runs."""

    def _refuse_if_aborted(self) -> None:
        if self._error is not None:
            raise self._error

    @contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """Raises the error of an earlier failure, and aborts the plane at the first one."""
        self._refuse_if_aborted()
        try:
            yield
        except HvdError as error:
            self.abort(error)
            assert self._error is not None
            raise self._error from None

    def _expect(self, spans: Sequence[Spans], what: str) -> None:
        """Raises ValueError unless there are spans for each rank."""
        if len(spans) != self.size:
            raise ValueError(f"{what} needs the spans of {self.size} ranks, got {len(spans)}")

    def _joined(self, spans: Sequence[Spans], what: str) -> tuple[Spans, npt.NDArray[np.uint64]]:
        """Returns the spans of each rank as the rows of one array, and how many rows each rank has."""
        self._expect(spans, what)
        return np.concatenate(spans), np.array([len(rows) for rows in spans], np.uint64)

    def _cells_of(self, matrix: Matrix) -> Matrix:
        """Returns ``matrix`` as native code reads it. Raises ValueError if it has another shape than (size, size)."""
        if matrix.shape != (self.size, self.size):
            raise ValueError(f"alltoall needs a matrix of shape {(self.size, self.size)}, not {matrix.shape}")
        return np.ascontiguousarray(matrix, np.uint64)

    def _expect_bytes(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:
        """Raises ValueError unless the spans of an all-to-all have the bytes of ``matrix``."""
        cells = self._cells_of(matrix)
        for what, spans, expected in (("sent", sends, cells[self.rank]), ("received", receives, cells[:, self.rank])):
            self._expect(spans, "alltoall")
            found = np.array([rows[:, 2].sum() for rows in spans], np.uint64)
            for rank in np.flatnonzero(found != expected).tolist():
                raise ValueError(
                    f"alltoall: the matrix has {expected[rank]} bytes between ranks {self.rank} and {rank}, "
                    f"but {found[rank]} are {what}"
                )


class DevicePlane(DataPlane):
    """A plane for the memory of devices that are not the CPU.

    A device works in streams, and then what collectives return are `Launch`es; or it has none, and then nothing here
    needs to be overridden.
    """

    def choose(self, device: Device) -> None:
        """Makes ``device`` the one whose tensors this plane takes. Any thread; called for each tensor's submit.

        Raises ValueError with the remedy if the plane takes no tensors of it, or has another one already.
        """

    def record(self, ordinal: int, stream: int) -> Any:
        """Returns a mark of the work that ``stream`` of device ``ordinal`` has been given until now.

        None if the device has no streams. Any thread.
        """
        return None

    def wait_for(self, marks: Sequence[Any]) -> None:
        """Lets the next collective begin only when the device has passed ``marks``. Executor thread only."""

    def attach_host_plane(self, plane: DataPlane) -> None:
        """Takes the group's plane for CPU memory, on which a collective of this plane may run collectives of its own.

        Called once, before the first collective.
        """


class Planes(dict[str, DataPlane]):
    """The planes of a group, by the kind of device whose memory each of them moves.

    All but the CPU's are `DevicePlane`s. ``lacking`` has the kinds of devices that only some ranks have, for which the
    group has no plane, and the numbers in the job of the ranks without one.
    """

    def __init__(self, **planes: DataPlane) -> None:
        super().__init__(planes)
        self.lacking: dict[str, list[int]] = {}

    def of_device(self, kind: str) -> DevicePlane:
        """The plane of a kind of device other than the CPU. Raises KeyError if there is none."""
        return cast(DevicePlane, self[kind])

    def absence_for(self, device: Device) -> str:
        """Returns why there is no plane for a tensor of ``device``, and what to do; empty if there is one."""
        if device.kind in self:
            return ""
        if not (lacking := self.lacking.get(device.kind)):
            return f"a tensor is on {device}, and hvdlite moves no such memory; pass a copy on {' or '.join(self)}"
        return (
            f"a tensor is on {device}, but rank(s) {shortened(lacking)} found no {device.kind} device at hvd.init(); "
            f"run hvdrun --check-build in their environment to see why, or pass a copy on {' or '.join(self)}"
        )

    def abort(self, error: HvdError) -> None:
        """Calls `DataPlane.abort` of all planes."""
        for plane in self.values():
            plane.abort(error)

    def close(self) -> None:
        """Calls `DataPlane.close` of all planes."""
        for plane in self.values():
            plane.close()


class HostPlane(DataPlane):
    """A plane of the ranks of one host, whose partial reductions another plane can continue."""

    @abstractmethod
    def reduce_partials(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, partials: int) -> None:
        """Reduces as `reducescatter` does, but writes this rank's part to ``partials``, neither postscaled nor rounded.

        The elements there are contiguous, as native/kernels/reduce.h describes. Spans are only read.
        """
