"""The plane for the memory of CUDA devices that goes through memory of the host, where ranks have no NCCL.

An inner plane runs the collectives in pinned memory. So they have the arithmetic of CPUs, whatever the type and the
scale factors. Tensors on CPUs never wait for GPUs, because they have another plane and another thread.

A collective is accepted at once and run by the thread that waits for its completion; collectives run one after the
other. The memory of the host that they need does not depend on the tensors.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from hvdlite.cuda.memory import DeviceMemory
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.log import logger
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.planes.base import DataPlane
from hvdlite.planes.gpu import GpuPlane
from hvdlite.planes.staged.pieces import Flow, Move, count_of, cut_of, pieces, room_for
from hvdlite.planes.staged.pipeline import Pipeline
from hvdlite.planes.staged.staged import Staged
from hvdlite.scope import Scope
from hvdlite.tensors.buffer import Matrix, Spans
from hvdlite.tensors.dtypes import DType

PIECE_BYTES: Final = 4 << 20


class StagedPlane(GpuPlane):
    """The plane of one of the ``members``, made of ``inner``, their plane for the memory of hosts, which it owns.

    A ``regret`` is logged when the plane is used.
    """

    name = "staged"

    def __init__(
        self, members: Membership, inner: DataPlane, regret: str = "", *, piece_bytes: int = PIECE_BYTES
    ) -> None:
        super().__init__(members)
        self._inner = inner
        self._regret = regret
        self._room = room_for(piece_bytes, inner.size)
        self._gpu: Pipeline | None = None
        self._taken: deque[Staged] = deque()  # and not finished, in order
        self._running = threading.Lock()  # who has it moves bytes

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> Staged | None:
        def move(number: int, pinned: Sequence[Spans]) -> None:
            self._inner.allreduce(pinned[0], dtype, op, prescale, postscale)

        return self._stage([Flow(spans, is_read=True, is_written=True)], _bytes_in([spans]), move)

    def allgather(self, streams: Sequence[Spans]) -> Staged | None:
        def move(number: int, pinned: Sequence[Spans]) -> None:
            self._inner.allgather(pinned)

        flows = [
            Flow(spans, is_read=rank == self.rank, is_written=True, keeps_in_place=rank == self.rank)
            for rank, spans in enumerate(streams)
        ]
        return self._stage(flows, _bytes_in(streams), move)

    def reducescatter(
        self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float
    ) -> Staged | None:
        def move(number: int, pinned: Sequence[Spans]) -> None:
            self._inner.reducescatter(pinned, dtype, op, prescale, postscale)

        flows = [Flow(spans, is_read=True, is_written=rank == self.rank) for rank, spans in enumerate(parts)]
        return self._stage(flows, _bytes_in(parts), move)

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> Staged | None:
        self._expect_bytes(sends, receives, matrix)
        most = int((matrix.sum(0) + matrix.sum(1)).max())  # of any rank, so that all make as many pieces
        count = count_of(most, 2 * self.size, self._room)

        def move(number: int, pinned: Sequence[Spans]) -> None:
            self._inner.alltoall(pinned[: self.size], pinned[self.size :], cut_of(matrix, number, count))

        flows = [Flow(spans, is_read=True, is_written=False) for spans in sends]
        flows += [Flow(spans, is_read=False, is_written=True) for spans in receives]
        return self._stage(flows, most, move)

    def barrier(self) -> Staged:
        return self._take([], 1, lambda number, pinned: self._inner.barrier())

    def zeros(self, nbytes: int, dtype: DType = DType.UINT8) -> tuple[int, Any]:
        with self._failing_for_good():
            memory = DeviceMemory(self._used(0).down, nbytes)
            memory.fill_zeros(dtype)
        return memory.address, memory

    def abort(self, error: HvdError) -> None:
        self._error = self._error or error
        self._inner.abort(self._error)
        for staged in list(self._taken):
            staged.wake()

    def close(self) -> None:
        """Frees everything, or leaves it to the thread that still waits for the GPU. Does nothing in a forked child."""
        if self._is_forked:
            return
        self._is_closed = True
        self._free_if_closed()

    def _stage(self, flows: Sequence[Flow], most: int, move: Move) -> Staged | None:
        """Accepts a collective of at most ``most`` bytes on any rank; None if no rank has any."""
        if not most:
            self._refuse_if_aborted()
            return None
        return self._take(flows, count_of(most, len(flows), self._room), move)

    def _take(self, flows: Sequence[Flow], count: int, move: Move) -> Staged:
        with self._failing_for_good():
            self._used(next((address for flow in flows if (address := flow.address)), 0))
        staged = Staged(self, pieces(flows, count, move), self._marks, self._carry_out)
        self._marks = ()
        self._taken.append(staged)
        return staged

    def _carry_out(self, last: Staged) -> None:
        """Runs the accepted collectives, in order, up to ``last``."""
        with self._running:
            while not last.is_over:
                self._do(self._taken[0])
                self._taken.popleft()
        self._free_if_closed()

    def _do(self, staged: Staged) -> None:
        error: HvdError | None = HorovodInternalError(f"a collective on rank {self._label} failed")
        try:
            with self._failing_for_good():
                assert self._gpu is not None
                end = self._gpu.run(staged.pieces, staged.marks, self._refuse_if_aborted)
                staged.given(end)
                end.event.wait()
                error = None
        except HvdError as raised:  # `Staged.wait` raises it
            error = raised
        finally:
            staged.finished(error)

    def _used(self, address: int) -> Pipeline:
        """Returns the pipeline on the plane's GPU, which ``address`` belongs to. The first collective makes it."""
        events = self._events_for(address)
        if self._gpu is None:
            self._gpu = Pipeline(events, self._room)
            if self._regret:
                _warn(self._regret)
        return self._gpu

    def _free_if_closed(self) -> None:
        """Frees everything once the plane is closed and nothing runs, in whichever thread notices it last."""
        if self._is_closed and self._running.acquire(blocking=False):
            try:
                if self._gpu is not None:
                    self._gpu.close()
                self._close_events()
                self._inner.close()
            finally:
                self._running.release()


class StagedPart(Part[DataPlane]):
    """Has a part of its own for the memory of the host, which ``make`` makes of a membership.

    The ``regret`` that there is no better plane is logged by the first rank once this one is used.
    """

    def __init__(self, membership: Membership, make: Callable[[Membership], Part[DataPlane]], regret: str = "") -> None:
        self._membership = membership
        self._regret = "" if membership.rank else regret
        self._inner = make(membership.among(range(membership.size), "staged"))

    def bind(self) -> Address:
        return self._inner.bind()

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        return StagedPlane(self._membership, self._inner.connect(addresses, scope), self._regret)

    def close(self) -> None:
        self._inner.close()


@cache
def _warn(text: str) -> None:
    """Logs a warning once per process, which may have many groups."""
    logger.warning("%s", text)


def _bytes_in(lists: Sequence[Spans]) -> int:
    return int(sum(int(spans[:, 2].sum()) for spans in lists))
