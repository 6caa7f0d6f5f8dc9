"""A rank of the plane that goes through the memory of the host, whose pieces and streams a test can stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Stream
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.planes.local import LocalPlane
from hvdlite.planes.staged.plane import StagedPlane
from hvdlite.planes.staged.staged import Staged
from hvdlite.tensors.buffer import Spans
from hvdlite.tensors.dtypes import DType, Sum
from tests.gpu.fake import Fakes, GpuArray
from tests.gpu.planes import spans_of
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

PIECE = 4096
FLOATS = PIECE // 4 - 32  # in a piece that is full


class Host(LocalPlane):
    """The plane of one rank, which stops at the pieces that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[int] = []  # bytes of each piece
        self.gates: dict[int, threading.Event] = {}
        self.failures: dict[int, HvdError] = {}

    def stop_at(self, piece: int) -> threading.Event:
        self.gates[piece] = gate = threading.Event()
        return gate

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        self.entered.append(int(spans[:, 2].sum()))
        if (gate := self.gates.get(len(self.entered) - 1)) is not None:
            assert gate.wait(PATIENCE_S)
        if (failure := self.failures.get(len(self.entered) - 1)) is not None:
            raise failure
        super().allreduce(spans, dtype, op, prescale, postscale)


class One:
    """A group of one rank, on the first GPU, and a stream of its caller."""

    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes
        self.host = Host()
        self.plane = StagedPlane(replace(member(0, "a"), ranks=(10,)), self.host, piece_bytes=PIECE)
        self.plane.zeros(1)  # makes its streams
        self.gpu.down.synchronize()
        self._context = Context(0)
        self.user = Stream(self._context)

    @property
    def gpu(self) -> Any:
        return self.plane._gpu

    def doubled(self, array: GpuArray, out: GpuArray | None = None) -> Staged:
        """Begins to write twice ``array`` to ``out``, or where it is."""
        spans = spans_of((array, out or array))
        staged = self.plane.allreduce(spans, DType.FLOAT32, Sum, 1.0, 2.0)
        assert staged is not None
        return staged

    def after_user(self) -> None:
        """Lets the next collective wait for the caller's stream."""
        self.plane.wait_for([self.plane.record(0, self.user.handle.value or 0)])

    def close(self) -> None:
        self.plane.close()
        self.user.close()
        self._context.close()

    def hold(self, stream: Stream) -> None:
        self.fakes.cuda.fake_hold(stream.handle)

    def release(self, stream: Stream) -> None:
        self.fakes.cuda.fake_release(stream.handle)


@contextmanager
def waiting(staged: Staged) -> Iterator[list[BaseException]]:
    """A thread waits for ``staged`` until the end of the context. What it raises is in the list then."""
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            staged.wait()
        except HorovodInternalError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    yield errors
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
