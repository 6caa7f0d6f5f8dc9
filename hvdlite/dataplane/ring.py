"""The plane of ranks that share no memory: a ring over ZeroMQ, driven by native code.

Each rank binds a ROUTER socket, *left*, from which it receives, and connects a DEALER socket, *right*, to its right
neighbour's. Python makes the sockets and lets the neighbours authenticate each other (`handshake`); then their raw
handles go to ``native/ring``, which alone uses them until the plane is closed.

Of the patterns that ZeroMQ has, this pair never drops a frame silently: DEALER refuses to send at its high-water mark
and ROUTER only ever reads here. ROUTER names the connection of each message, so a stranger can neither take the
neighbour's place, as it could with PAIR, nor mix its messages in, as with DEALER or PULL. A lost connection is not
made again, because frames would be missing.

The first failure is final. It closes the sockets, which makes ZeroMQ let go of the caller's memory, and every later
call raises the same error.
"""

from __future__ import annotations

import ctypes
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zmq
import zmq.backend.cython._zmq as zmq_extension

from hvdlite import native
from hvdlite.core.buffer import Matrix, Spans
from hvdlite.core.dtypes import DType
from hvdlite.dataplane.base import DataPlane
from hvdlite.dataplane.handshake import Callee, Caller, Refused, session_key
from hvdlite.errors import HorovodInternalError, HvdError, ShutDown

_DRAIN_TIMEOUT_S: Final = 10.0
_LINGER_S: Final = 2.0


class RingPlane(DataPlane):
    """One rank of a ring. Usable after `connect`.

    ``address`` is where the left neighbour has to connect. All ranks give the same ``job_secret``, ``session``,
    ``chunk_bytes`` and ``window``. ``bind`` is a ZeroMQ address to listen on; ``tcp://IP:*`` takes any free port.
    ``called`` are the numbers by which messages call the ranks, where this ring joins only a part of a group.
    """

    name = "ring"

    def __init__(
        self,
        rank: int,
        size: int,
        job_secret: bytes,
        session: int,
        *,
        chunk_bytes: int,
        window: int,
        progress_timeout_s: float,
        bind: str | None = None,
        called: Sequence[int] = (),
    ) -> None:
        if not 0 <= rank < size or size < 2:
            raise ValueError(f"a ring needs at least 2 ranks and a rank below their number, got rank {rank} of {size}")
        self.rank = rank
        self.size = size
        self._called = called or range(size)
        self._secret = job_secret
        self._session = session
        self._chunk_bytes = chunk_bytes
        self._window = window
        self._progress_timeout_s = progress_timeout_s
        self._library = native.library()
        self._ring: ctypes.c_void_p | None = None
        self._error: HvdError | None = None
        self._lock = threading.Lock()  # guards _ring and _error against abort, which any thread may call
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._left = self._socket(zmq.ROUTER)
        self._right = self._socket(zmq.DEALER)
        try:
            self._left.bind(bind or f"ipc://@hvdlite-ring-{secrets.token_hex(16)}")
        except zmq.ZMQError as error:
            self.close()
            raise HorovodInternalError(f"rank {self._own_rank} cannot listen on {bind}: {error}") from None
        self.address: str = self._left.get_string(zmq.LAST_ENDPOINT)

    def connect(self, right_address: str, deadline: float) -> None:
        """Connects to the right neighbour and lets the left one in, both authenticated.

        ``deadline`` is a time of the monotonic clock. Raises HorovodInternalError that names the neighbour which did
        not come or is not of this job. Strangers are refused and do not keep the neighbours from connecting.
        """
        try:
            self._right.connect(right_address)
            self._authenticate(deadline)
            self._open()
        except (zmq.ZMQError, Refused, HorovodInternalError) as error:
            failure = HorovodInternalError(
                f"rank {self._own_rank} cannot join the ring (its right neighbour should be at {right_address}): "
                f"{error}"
            )
            self.abort(failure)
            self.close()
            raise failure from None

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        reduction = native.Reduction(int(dtype), op, prescale, postscale)
        self._run("allreduce", spans.ctypes.data, len(spans), ctypes.byref(reduction))

    def allgather(self, streams: Sequence[Spans]) -> None:
        spans, counts = self._of_all_ranks(streams, "allgather")
        self._run("allgather", spans.ctypes.data, counts.ctypes.data)

    def reducescatter(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float) -> None:
        spans, counts = self._of_all_ranks(parts, "reducescatter")
        reduction = native.Reduction(int(dtype), op, prescale, postscale)
        self._run("reducescatter", spans.ctypes.data, counts.ctypes.data, ctypes.byref(reduction))

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:
        sent, send_counts = self._of_all_ranks(sends, "alltoall")
        received, receive_counts = self._of_all_ranks(receives, "alltoall")
        cells = np.ascontiguousarray(matrix, np.uint64)
        if cells.shape != (self.size, self.size):
            raise ValueError(f"alltoall needs a matrix of shape {(self.size, self.size)}, not {cells.shape}")
        arrays = (sent, send_counts, received, receive_counts, cells)
        self._run("alltoall", *(array.ctypes.data for array in arrays))

    def barrier(self) -> None:
        self._run("barrier")

    def abort(self, error: HvdError) -> None:
        with self._lock:
            self._error = self._error or error
            if self._ring is not None:
                self._library.hvd_ring_abort(self._ring)

    def close(self) -> None:
        # The last frames of a collective that ended well may still be on their way to the neighbour.
        self._release(linger_s=0 if self._error else _LINGER_S)
        self.abort(ShutDown(self._own_rank, f"rank {self._own_rank} closed its ring"))
        with self._lock:
            ring, self._ring = self._ring, None
        if ring is not None:
            self._library.hvd_ring_close(ring)
        self._context.term()

    @property
    def _own_rank(self) -> int:
        return self._called[self.rank]

    @property
    def _left_rank(self) -> int:
        return self._called[(self.rank - 1) % self.size]

    @property
    def _right_rank(self) -> int:
        return self._called[(self.rank + 1) % self.size]

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.maxmsgsize = self._chunk_bytes
        # Twice the window, so that a rank that keeps to its window never meets the mark.
        socket.set_hwm(2 * self._window)
        # No message before the connection stands, and none ever after it broke.
        socket.immediate = True
        socket.reconnect_ivl = -1
        return socket

    def _authenticate(self, deadline: float) -> None:
        caller = Caller(self._secret, self._session, self._own_rank, self._right_rank)
        callee = Callee(self._secret, self._session, self._own_rank, self._left_rank)
        is_proved = False
        poller = zmq.Poller()
        poller.register(self._left, zmq.POLLIN)
        poller.register(self._right, zmq.POLLOUT)
        while not (is_proved and callee.is_admitted):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise Refused(self._who_is_missing(is_proved, callee))
            ready = dict(poller.poll(int(remaining_s * 1000) + 1))
            if self._left in ready:
                self._answer(callee)
                if callee.is_admitted:
                    # What follows from the left neighbour is its frames, and those are for the native ring.
                    poller.unregister(self._left)
            if ready.get(self._right) == zmq.POLLOUT:
                self._right.send(caller.hello, zmq.DONTWAIT)
                poller.register(self._right, zmq.POLLIN)
            elif self._right in ready:
                self._right.send(caller.prove(self._right.recv(zmq.DONTWAIT)), zmq.DONTWAIT)
                poller.unregister(self._right)
                is_proved = True

    def _answer(self, callee: Callee) -> None:
        connection, *parts = self._left.recv_multipart(zmq.DONTWAIT)
        reply = callee.receive(connection, parts[0] if len(parts) == 1 else b"")
        if reply is not None:
            self._left.send_multipart((connection, reply), zmq.DONTWAIT)

    def _who_is_missing(self, is_proved: bool, callee: Callee) -> str:
        if not is_proved:
            return f"rank {self._right_rank} did not answer in time; see its own output for the reason"
        refused = f"; {callee.refused} messages without the secret of this job were refused" if callee.refused else ""
        return f"rank {self._left_rank} did not connect to rank {self._own_rank} in time{refused}"

    def _open(self) -> None:
        ring = ctypes.c_void_p()
        status = self._library.hvd_ring_open(
            zmq_extension.__file__.encode(),
            self._left.underlying,
            self._right.underlying,
            self.rank,
            self.size,
            session_key(self._secret, self._session),
            self._chunk_bytes,
            self._window,
            int(self._progress_timeout_s * 1e9),
            ctypes.byref(ring),
        )
        native.check(status, f"opening the ring on rank {self._own_rank}")
        with self._lock:
            self._ring = ring
            if self._error is not None:
                self._library.hvd_ring_abort(ring)

    def _of_all_ranks(self, spans: Sequence[Spans], what: str) -> tuple[Spans, npt.NDArray[np.uint64]]:
        """The spans of each rank as the rows of one array, and how many rows each rank has."""
        if len(spans) != self.size:
            raise ValueError(f"{what} needs the spans of {self.size} ranks, got {len(spans)}")
        return np.concatenate(spans), np.array([len(rows) for rows in spans], np.uint64)

    def _run(self, collective: str, *arguments: Any) -> None:
        if self._ring is None:
            raise self._error or HorovodInternalError(f"{collective} before the ring was connected")
        status = getattr(self._library, f"hvd_ring_{collective}")(self._ring, *arguments)
        if status == native.OK:
            return
        between = f"between ranks {self._left_rank} and {self._right_rank}"
        what = f"{collective} on rank {self._own_rank} of the ring, {between},"
        try:
            native.check(status, what, self._error)
        except HvdError as error:
            self.abort(error)
            self._release(linger_s=0)
            raise

    def _release(self, linger_s: float) -> None:
        """Closes the sockets and waits until ZeroMQ lets go of the caller's memory."""
        self._left.close(linger=0)
        self._right.close(linger=int(linger_s * 1000))
        if self._ring is not None:
            status = self._library.hvd_ring_drain(self._ring, int(_DRAIN_TIMEOUT_S * 1e9))
            native.check(status, f"taking back the memory of rank {self._own_rank} from ZeroMQ")
