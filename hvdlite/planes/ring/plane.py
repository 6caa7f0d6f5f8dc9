"""The plane of ranks that share no memory: a ring of stream sockets, driven by native code.

Each rank listens for its left neighbour, from which it receives, and dials its right one, to which it sends: over one
connection each, or over several that share the frames. A `Reconnector` makes the connections, authenticates both
neighbours, and re-establishes connections that end; only ``native/ring`` reads and writes them, and it loses nothing in
between.

The first failure is final: it ends the connections, and every later call raises the same error.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hvdlite import native
from hvdlite.errors import HorovodInternalError, HvdError, ShutDown
from hvdlite.members.membership import Membership
from hvdlite.net.handshake import session_key
from hvdlite.net.listening import LOOPBACK
from hvdlite.net.sealed import NoLibcrypto, path_of_libcrypto
from hvdlite.net.sockets import listen, name_of
from hvdlite.planes.neighbours import NeighbourPlane
from hvdlite.planes.ring.connections import RingConnections
from hvdlite.planes.ring.reconnector import Neighbours, Reconnector
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Matrix, Spans
from hvdlite.tensors.dtypes import DType

_LINGER_S: Final = 2.0
_NO_LIBCRYPTO: Final = (
    "tensors cannot be encrypted: {}; use another Python on all hosts, or leave out "
    "HVDLITE_ENCRYPT_DATA (hvdrun: --encrypt-data)"
)


class RingPlane(NeighbourPlane):
    """One rank of a ring in the order of the members. Usable after `connect`.

    Members of one host connect over Unix sockets, others over TCP, where frames have checksums or are encrypted. The
    ring fails if the host of a neighbour that was connected is unreachable for twice the peer time-out. Raises
    HorovodInternalError if this rank cannot listen where the options say.
    """

    name = "ring"

    def __init__(self, members: Membership, options: Settings) -> None:
        if members.size < 2:
            raise ValueError(f"a ring needs at least 2 ranks, got {members.size}")
        self.rank, self.size = members.rank, members.size
        left, own, right = (members.ranks[number % self.size] for number in (self.rank - 1, self.rank, self.rank + 1))
        is_across = not members.is_one_host
        self._neighbours = Neighbours(
            members.key_for("ring"), members.session, left, own, right, options.ring_connections if is_across else 1
        )
        self._progress_timeout_s = options.progress_timeout
        self._unreachable_s = 2 * options.peer_timeout
        self._library = native.library()
        if options.keep_freed:
            # A block is allocated for each frame that comes; many of their pages would be new again in each batch.
            self._library.hvd_keep_freed(4 * options.ring_window * options.ring_chunk)
        self._reconnector: Reconnector | None = None
        self._lock = threading.Lock()  # guards _ring, _reconnector and _error against abort, which any thread may call
        try:
            self._listener = listen(options.address or LOOPBACK if is_across else None, options.ports)
        except HorovodInternalError as error:
            raise HorovodInternalError(f"rank {own} {error}") from None
        self.address = name_of(self._listener)
        try:
            self._ring: ctypes.c_void_p | None = self._open(options, is_across)
        except BaseException:
            self._listener.close()
            raise

    def connect(self, right_address: str, scope: Scope) -> None:
        """Connects to the right neighbour and lets the left one in, both authenticated.

        Raises HorovodInternalError that names the neighbour which did not come or is not of this job. Strangers are
        refused and do not keep the neighbours from connecting.
        """
        with self._lock:
            if self._error is not None or self._ring is None:
                raise self._error or HorovodInternalError("connect on a ring that is closed")
            connections = RingConnections(self._ring, self._neighbours.connections)
            self._reconnector = reconnector = Reconnector(
                self._neighbours,
                connections,
                self._listener,
                right_address,
                self._progress_timeout_s,
                self._unreachable_s,
                self.abort,
            )
        try:
            reconnector.wait_until_connected(scope)
        except HorovodInternalError as error:
            failure = HorovodInternalError(f"rank {self._neighbours.rank} cannot join the ring: {error}")
            self.abort(failure)
            self.close()
            raise self._error or failure from None

    @property
    def counters(self) -> Mapping[str, int]:
        """Connections that took the place of one that ended, and damaged frames that came."""
        with self._lock:
            if self._reconnector is None or self._ring is None:
                return {"resumed": 0, "corrupt": 0}
            return {"resumed": self._reconnector.resumed, "corrupt": self._reconnector.corrupt}

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        reduction = native.Reduction(int(dtype), op, prescale, postscale)
        self._run("allreduce", spans.ctypes.data, len(spans), ctypes.byref(reduction))

    def allgather(self, streams: Sequence[Spans]) -> None:
        spans, counts = self._joined(streams, "allgather")
        self._run("allgather", spans.ctypes.data, counts.ctypes.data)

    def reducescatter(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float) -> None:
        spans, counts = self._joined(parts, "reducescatter")
        reduction = native.Reduction(int(dtype), op, prescale, postscale)
        self._run("reducescatter", spans.ctypes.data, counts.ctypes.data, ctypes.byref(reduction))

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:
        sent, send_counts = self._joined(sends, "alltoall")
        received, receive_counts = self._joined(receives, "alltoall")
        cells = self._cells_of(matrix)
        arrays = (sent, send_counts, received, receive_counts, cells)
        self._run("alltoall", *(array.ctypes.data for array in arrays))

    def barrier(self) -> None:
        self._run("barrier")

    def abort(self, error: HvdError) -> None:
        with self._lock:
            self._error = self._error or error
            if self._ring is not None:
                self._library.hvd_ring_abort(self._ring)
            if self._reconnector is not None:
                self._reconnector.stop()

    def close(self) -> None:
        if self._reconnector is not None:
            # The last frames of a successful collective may still be on their way to the neighbour.
            self._reconnector.close(linger_s=0 if self._error else _LINGER_S)
        else:
            self._listener.close()
        own = self._neighbours.rank
        self.abort(ShutDown(own, f"rank {own} closed its ring"))
        with self._lock:
            ring, self._ring = self._ring, None
        if ring is not None:
            self._library.hvd_ring_close(ring)

    def _open(self, options: Settings, has_checksums: bool) -> ctypes.c_void_p:
        ring = ctypes.c_void_p()
        neighbours, encrypts = self._neighbours, options.encrypt_data and has_checksums
        try:
            libcrypto = path_of_libcrypto() if encrypts else None
        except NoLibcrypto as error:
            raise HorovodInternalError(_NO_LIBCRYPTO.format(error)) from None
        status = self._library.hvd_ring_open(
            self.rank,
            self.size,
            session_key(neighbours.secret, neighbours.session),
            options.ring_chunk,
            options.ring_window,
            neighbours.connections,
            has_checksums,
            libcrypto,
            round(max(options.spin, 0) * 1000),
            int(options.progress_timeout * 1e9),
            ctypes.byref(ring),
        )
        if encrypts and status == native.SYSTEM and ctypes.get_errno() == errno.ELIBACC:
            raise HorovodInternalError(_NO_LIBCRYPTO.format(NoLibcrypto()))
        native.check(status, f"opening the ring on rank {neighbours.rank}")
        return ring

    def _run(self, collective: str, *arguments: Any) -> None:
        if self._ring is None or self._reconnector is None:
            raise self._error or HorovodInternalError(f"{collective} before the ring was connected")
        status = getattr(self._library, f"hvd_ring_{collective}")(self._ring, *arguments)
        if status == native.OK:
            return
        neighbours = self._neighbours
        beside = {neighbours.left, neighbours.right}  # of two ranks each is the other's neighbour on both sides
        where = (
            f"between ranks {neighbours.left} and {neighbours.right}"
            if len(beside) > 1
            else f"next to rank {neighbours.left}"
        )
        what = f"{collective} on rank {neighbours.rank} of the ring, {where},"
        try:
            native.check(status, what, self._error)
        except HvdError as error:
            self.abort(error)
            raise
