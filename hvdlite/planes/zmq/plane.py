"""A ring over ZeroMQ: the plane for ranks without the native library, and the one to read first.

Each rank receives from its left neighbour and sends to its right one, over a PULL and a PUSH socket with CURVE, which
admits only holders of the group's key. A vector travels in pieces, so that a rank folds one while ZeroMQ's own
thread moves others. Reduce-scatter takes N - 1 steps: a part begins at the right neighbour of the rank that gets it,
and every rank on the way folds its own values into it. All-reduce is a reduce-scatter, then an all-gather of the parts
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).

Connections are never re-established: when one ends, its rank is lost.
"""

from __future__ import annotations

import ctypes
import itertools
import select
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zmq

from hvdlite.errors import ENDED, HorovodInternalError, HvdError, PeerLost, ShutDown
from hvdlite.members.membership import Membership
from hvdlite.net import curve
from hvdlite.net.listening import LOOPBACK, endpoint, listen, split
from hvdlite.net.wake import Wake
from hvdlite.planes.arithmetic import BITS, closed, folding, opened
from hvdlite.planes.neighbours import NeighbourPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Matrix, Spans
from hvdlite.tensors.dtypes import DType

Array = npt.NDArray[Any]

_PIECE_BYTES: Final = 512 << 10
_MESSAGE_BYTES: Final = 2 * _PIECE_BYTES  # sums for averages of integers have twice their bytes
_OF_CURVE_BYTES: Final = 64  # bytes that encryption adds to a message
_HELLO: Final = struct.Struct("<II")
_EVENT: Final = struct.Struct("=hi")  # the format of a monitor's events, as libzmq documents it
_LINGER_MS: Final = 2000
_VERDICT_MS: Final = 1000


class ZmqPlane(NeighbourPlane):
    """One rank of a ring. Usable after `connect`; the left neighbour connects to `address`.

    All ranks give the same ``key``, 32 bytes that no other group has. A rank listens on the IP address ``address`` at
    one of ``ports`` (None: any port). Errors call the ranks by the numbers ``labels``, on ``hosts``. Raises
    HorovodInternalError if the rank cannot listen there.
    """

    name = "zmq"

    def __init__(self, members: Membership, options: Settings) -> None:
        self.rank, self.size = members.rank, members.size
        self._labels = members.ranks
        self._hosts = [host.name for host in members.hosts]
        self._progress_timeout_s = options.progress_timeout
        address = LOOPBACK if members.is_one_host else options.address or LOOPBACK
        self._lock = threading.Lock()  # guards _error and _wake against abort, which any thread may call
        self._wake: Wake | None = Wake()
        self._context = zmq.Context()
        self._left, self._right = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        self._left_fd = -1
        self._has_left = False
        for socket in (self._left, self._right):
            socket.set_hwm(0)
            socket.linger = _LINGER_MS
            socket.ipv6 = ":" in address
            socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES + _OF_CURVE_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL, -1)
        key = members.key_for("zmq")
        curve.serve(self._left, key)
        curve.dial(self._right, key)
        self._monitor = self._left.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        for watched in (self._left, self._monitor, self._wake.fd):
            self._poller.register(watched, zmq.POLLIN)
        try:
            listener = listen(address, options.ports)
            self.address = endpoint(address, int(listener.name()[1]))
            self._left.setsockopt(zmq.USE_FD, listener.hand_over())
            self._left.bind(self.address)
        except BaseException:
            self.close()
            raise

    def connect(self, right_address: str, scope: Scope) -> None:
        """Connects to the right neighbour and waits for the left one.

        Raises HorovodInternalError if either is not connected in time, and ValueError for an invalid address.
        """
        split(right_address)
        with self._failing_for_good():
            self._right.connect(right_address)
            with suppress(zmq.Again):  # the right one has refused this rank, and the left one will not connect either
                self._right.send(_HELLO.pack(self.rank, self.size), zmq.NOBLOCK)
            left = (self.rank - 1) % self.size
            hello = self._next(scope, f"rank {self._labels[left]} did not connect to it in time")
            self._left_fd = hello.get(zmq.SRCFD)
            if hello.bytes != _HELLO.pack(left, self.size):
                raise HorovodInternalError(f"rank {self._labels[self.rank]} was called by a rank that is not its left")

    # ---- collectives

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        with self._failing_for_good():
            bits = _read(spans).view(BITS[dtype])
            ends = [len(bits) * number // self.size for number in range(1, self.size)]
            own = self._reduced(np.split(bits, ends), dtype, op, prescale, postscale)
            result = np.empty_like(bits)
            parts = np.split(result, ends)
            parts[self.rank][:] = own
            self._circulate([part.view(np.uint8) for part in parts])
            _write(spans, result.view(np.uint8))

    def allgather(self, streams: Sequence[Spans]) -> None:
        with self._failing_for_good():
            blocks = [np.empty(int(spans[:, 2].sum()), np.uint8) for spans in streams]
            blocks[self.rank] = _read(streams[self.rank])
            self._circulate(blocks)
            for spans, block in zip(streams, blocks, strict=True):
                _write(spans, block)

    def reducescatter(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float) -> None:
        with self._failing_for_good():
            bits = [_read(spans).view(BITS[dtype]) for spans in parts]
            _write(parts[self.rank], self._reduced(bits, dtype, op, prescale, postscale).view(np.uint8))

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:
        self._expect_bytes(sends, receives, matrix)
        cells = matrix.astype(np.int64)
        with self._failing_for_good():
            _write(receives[self.rank], _read(sends[self.rank]))
            # A rank's data travels the ring in the order of the receiving ranks, and each keeps its own part.
            load = np.concatenate([_read(sends[(self.rank + step) % self.size]) for step in range(1, self.size)])
            for step in range(1, self.size):
                sender = (self.rank - step) % self.size
                left = sum(int(cells[sender, (sender + later) % self.size]) for later in range(step, self.size))
                came = np.empty(left, np.uint8)
                self._exchange(load, came)
                own = int(cells[sender, self.rank])
                _write(receives[sender], came[:own])
                load = came[own:]

    def barrier(self) -> None:
        with self._failing_for_good():
            for _ in range(self.size - 1):
                self._send(np.empty(0, np.uint8))
                self._receive(0)

    def _reduced(self, parts: Sequence[Array], dtype: DType, op: int, prescale: float, postscale: float) -> Array:
        """Returns this rank's part of the reduction of all ranks' ``parts``, as bits."""
        fold = folding(dtype, op)

        def values(number: int) -> Iterator[Array]:
            return (opened(piece, dtype, op, prescale) for piece in _pieces(parts[number % self.size]))

        with np.errstate(all="ignore"):
            travelling = list(values(self.rank - 1))
            for step in range(2, self.size + 1):
                sent, travelling = travelling, []
                for outgoing, own in itertools.zip_longest(sent, values(self.rank - step)):
                    if outgoing is not None:
                        self._send(outgoing)
                    if own is not None:
                        travelling.append(fold(self._receive(own.nbytes).view(own.dtype), own))
            done = [closed(piece, dtype, op, postscale) for piece in travelling]
        return np.concatenate(done) if done else np.empty(0, BITS[dtype])

    def _circulate(self, blocks: Sequence[Array]) -> None:
        """Sends this rank's block round the ring, and receives the blocks of the others."""
        for step in range(self.size - 1):
            self._exchange(blocks[(self.rank - step) % self.size], blocks[(self.rank - step - 1) % self.size])

    def _exchange(self, outgoing: Array, incoming: Array) -> None:
        for sent, room in itertools.zip_longest(_pieces(outgoing), _pieces(incoming)):
            if sent is not None:
                self._send(sent)
            if room is not None:
                room[:] = self._receive(room.nbytes)

    # ---- messages

    def _send(self, piece: Array) -> None:
        try:
            self._right.send(piece.data, zmq.NOBLOCK)  # copied: the caller may reuse its memory first
        except zmq.Again:  # the queue is unlimited, so this means that the peer is gone
            raise self._lost((self.rank + 1) % self.size) from None

    def _receive(self, nbytes: int) -> Array:
        frame = self._next(
            Scope.of(self._progress_timeout_s),
            f"rank {self._labels[self.rank]} got nothing from rank {self._labels[self.rank - 1]} for "
            f"{self._progress_timeout_s:g} s (HVDLITE_PROGRESS_TIMEOUT)",
        )
        if len(frame) != nbytes:
            raise HorovodInternalError(
                f"rank {self._labels[self.rank - 1]} sent {len(frame)} bytes where {nbytes} were due"
            )
        return np.frombuffer(frame.buffer, np.uint8)

    def _next(self, scope: Scope, silence: str) -> zmq.Frame:
        while True:
            self._refuse_if_aborted()
            try:
                return self._left.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                pass
            if self._has_left:  # and all that it had sent has been read
                raise self._lost((self.rank - 1) % self.size)
            if not (events := self._poller.poll(int(scope.pause_s() * 1000) + 1)) and scope.is_over:
                raise HorovodInternalError(silence)
            if (self._monitor, zmq.POLLIN) in events:
                kind, fd = _EVENT.unpack(self._monitor.recv_multipart()[0])
                self._has_left = self._has_left or (kind == zmq.EVENT_DISCONNECTED and fd == self._left_fd)

    def _lost(self, rank: int) -> HvdError:
        """Returns the group's error for the lost connection to ``rank`` if it comes soon, else `PeerLost`.

        A rank that raised at once might exit before the group learned of the loss, and be taken for the lost rank.
        """
        if (wake := self._wake) is not None:
            verdict = select.poll()
            verdict.register(wake.fd, select.POLLIN)
            verdict.poll(_VERDICT_MS)
        return self._error or PeerLost(self._labels[rank], self._hosts[rank], ENDED)

    # ---- the end

    def abort(self, error: HvdError) -> None:
        with self._lock:
            self._error = self._error or error
            if self._wake is not None:
                self._wake.set()

    def close(self) -> None:
        self.abort(ShutDown(self._labels[self.rank], f"rank {self._labels[self.rank]} closed its ring"))
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            self._left.disable_monitor()
            self._context.destroy(linger=_LINGER_MS)
            wake.close()


def _pieces(array: Array) -> Iterator[Array]:
    """Cuts ``array`` into pieces that fit into a message even when widened to four bytes an element."""
    step = _PIECE_BYTES // max(4, array.itemsize)
    return (array[begin : begin + step] for begin in range(0, len(array), step))


def _memory(address: int, nbytes: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))


def _read(spans: Spans) -> Array:
    """Copies the memory that ``spans`` read."""
    rows = [_memory(read, nbytes) for read, _, nbytes in spans.tolist() if nbytes]
    return np.concatenate(rows) if rows else np.empty(0, np.uint8)


def _write(spans: Spans, data: Array) -> None:
    begin = 0
    for _, write, nbytes in spans.tolist():
        if nbytes:
            _memory(write, nbytes)[:] = data[begin : begin + nbytes]
        begin += nbytes
