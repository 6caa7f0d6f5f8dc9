"""The plane of several hosts with several ranks: shared memory within a host, rings across.

The ranks of a host share memory, the *local* plane. The rings are called *lanes*: the first ranks of all hosts form
one, the second ranks another, and so on up to the size of the smallest host. An all-reduce cuts the batch into one
slice per lane and

1. reduces each slice within the host, in shared memory, into the memory of the rank whose lane it is;
2. reduces it across hosts in that lane;
3. distributes the result within the host.

Ranks without a lane take part in 1 and 3 only. Each of H hosts sends 2 (H - 1) / H of the batch over the network, the
least possible (Patarasuk and Yuan, 2009), and its ranks share the work. Partial results of float16 and bfloat16 are
float32 in 1 and 2, so sums are rounded once, at the end, and overflow no earlier; results travel as 16 bits. Sums for
averages of integers are wider in 1 and 2, too.

An all-gather first distributes the contributions of a host's ranks within the host, and then takes steps 2 and 3 for
the contributions of other hosts, so each host receives each byte once. A broadcast is a case of it.

In a reduce-scatter a lane reduces the parts of its own ranks, and step 2 leaves each part where it belongs. That needs
hosts with equal numbers of ranks; otherwise a reduce-scatter runs on one *ring* of all ranks, in which the ranks of a
host are neighbours. An all-to-all uses that ring for everything that moves between hosts.

Large batches move in pieces. A rank that waits in shared memory while another waits for the network waits for one
piece, and so the timeout applies to a piece and not to the batch.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from hvdlite import native
from hvdlite.errors import HvdError
from hvdlite.members.membership import Membership
from hvdlite.memory.arena import Regions
from hvdlite.planes.base import DataPlane, HostPlane
from hvdlite.tensors.buffer import Matrix, Spans, in_place, sliced
from hvdlite.tensors.dtypes import Average, DType, Sum

_PIECE_BYTES: Final = 16 << 20
_STEP: Final = 4096  # elements; a slice of fewer is not worth the messages of one more lane
_WIDER: Final = {DType.FLOAT16: (DType.FLOAT32, 1), DType.BFLOAT16: (DType.FLOAT32, 1)}
_OF_AVERAGES: Final = {
    DType.UINT8: (DType.INT32, 1),
    DType.INT8: (DType.INT32, 1),
    DType.INT16: (DType.INT32, 1),
    DType.INT32: (DType.INT64, 1),
    DType.INT64: (DType.INT64, 2),
}
"""The type of a partial result, and how many of its numbers stand for one element: see native/kernels/reduce.h."""
_NOTHING: Final = np.empty((0, 3), np.uint64)

Hosts = Sequence[Sequence[int]]
"""The ranks of each host, ascending; the hosts in one order on all ranks."""


def lanes_of(hosts: Hosts) -> Hosts:
    """Returns the ranks of each lane, in the order of their hosts."""
    return list(zip(*hosts, strict=False))


def in_ring_order(hosts: Hosts) -> Sequence[int]:
    """Returns all ranks, host by host."""
    return [rank for ranks in hosts for rank in ranks]


class HierarchicalPlane(DataPlane):
    """A plane made of others, which it owns.

    ``local`` has the ranks of this host, ``lane`` the ranks of this rank's lane, if it has one, and ``ring`` all ranks,
    host by host.
    """

    name = "hierarchical"

    def __init__(self, members: Membership, local: HostPlane, lane: DataPlane | None, ring: DataPlane) -> None:
        self.rank, self.size = members.rank, members.size
        self._hosts = hosts = list(members.by_leader.values())
        self._neighbours = members.on_this_host
        self._lanes = lanes_of(hosts)
        self._order = in_ring_order(hosts)
        self._local = local
        self._lane = lane
        self._ring = ring
        self._parts = [local, ring] if lane is None else [local, lane, ring]
        self._lock = threading.Lock()  # guards _error: `abort` comes from any thread

    @property
    def counters(self) -> Mapping[str, int]:
        """The sums of its parts' counters."""
        total: Counter[str] = Counter()
        for part in self._parts:
            total.update(part.counters)
        return total

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        with self._failing_for_good():
            step = _STEP * dtype.itemsize
            for piece in sliced(spans, _pieces(spans), step):
                slices = self._by_local_rank(sliced(piece, len(self._lanes), step))
                if dtype in _WIDER or op == Average:
                    parts = sliced(slices[self._local.rank], len(self._hosts), step)
                    self._reduce_parts(slices, parts, native.Reduction(int(dtype), op, prescale, postscale))
                    if self._lane is not None:
                        self._lane.allgather([in_place(rows) for rows in parts])
                else:
                    self._local.reducescatter(slices, dtype, op, prescale, 1.0)
                    if self._lane is not None:
                        self._lane.allreduce(in_place(slices[self._local.rank]), dtype, op, 1.0, postscale)
                self._local.allgather([in_place(rows) for rows in slices])

    def _reduce_parts(self, slices: Sequence[Spans], parts: Sequence[Spans], reduction: native.Reduction) -> None:
        """Runs steps 1 and 2 with partial results.

        ``slices`` is what each lane reduces, by local rank. ``parts`` is the slice of this rank's lane, cut into a part
        for each host, in order; each host rounds and scales the result of its part, and writes it to the spans.
        """
        dtype = DType(reduction.dtype)
        wide, numbers = _OF_AVERAGES[dtype] if reduction.op == Average else _WIDER.get(dtype, (dtype, 1))
        sizes = [int(part[:, 2].sum()) // dtype.itemsize * numbers * wide.itemsize for part in parts]
        partials = np.empty(sum(sizes), np.uint8)
        self._local.reduce_partials(slices, dtype, reduction.op, reduction.prescale, partials.ctypes.data)
        if self._lane is None:
            return
        ends = partials.ctypes.data + np.cumsum(sizes, dtype=np.uint64)
        rows = [np.array([[end - size, end - size, size]], np.uint64) for end, size in zip(ends, sizes, strict=True)]
        added = Sum if reduction.op == Average else reduction.op  # wide enough not to wrap around
        self._lane.reducescatter(rows, wide, added, 1.0, 1.0)
        own = parts[self._lane.rank]
        status = native.library().hvd_close_partials(
            int(rows[self._lane.rank][0, 0]), own.ctypes.data, len(own), ctypes.byref(reduction)
        )
        native.check(status, f"rounding on rank {self.rank}")

    def allgather(self, streams: Sequence[Spans]) -> None:
        self._expect(streams, "allgather")
        with self._failing_for_good():
            pieces = max(_pieces(_of(streams, ranks)) for ranks in self._hosts)
            for piece in zip(*(sliced(stream, pieces, _STEP) for stream in streams), strict=True):
                self._gather(piece)

    def _gather(self, streams: Sequence[Spans]) -> None:
        self._local.allgather([streams[rank] for rank in self._neighbours])
        held = [in_place(stream) for stream in streams]
        by_host = [sliced(_of(held, ranks), len(self._lanes), _STEP) for ranks in self._hosts]
        if self._lane is not None:
            self._lane.allgather([slices[self._local.rank] for slices in by_host])
        others = [slices for slices, ranks in zip(by_host, self._hosts, strict=True) if ranks is not self._neighbours]
        self._local.allgather(self._by_local_rank([np.concatenate(rows) for rows in zip(*others, strict=True)]))

    def reducescatter(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float) -> None:
        self._expect(parts, "reducescatter")
        with self._failing_for_good():
            if len(self._lanes) < max(map(len, self._hosts)):
                self._ring.reducescatter([parts[rank] for rank in self._order], dtype, op, prescale, postscale)
                return
            reduction, step = native.Reduction(int(dtype), op, prescale, postscale), _STEP * dtype.itemsize
            pieces = max(_pieces(_of(parts, lane)) for lane in self._lanes)
            for piece in zip(*(sliced(part, pieces, step) for part in parts), strict=True):
                slices = [_of(piece, lane) for lane in self._lanes]
                self._reduce_parts(slices, [piece[rank] for rank in self._lanes[self._local.rank]], reduction)

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:
        self._expect_bytes(sends, receives, matrix)  # each of the two planes below sees only a part of them
        with self._failing_for_good():
            here = self._neighbours
            self._local.alltoall([sends[r] for r in here], [receives[r] for r in here], matrix[np.ix_(here, here)])
            self._ring.alltoall(self._to_others(sends), self._to_others(receives), self._between_hosts(matrix))

    def barrier(self) -> None:
        with self._failing_for_good():
            self._local.barrier()
            if self._lane is not None:
                self._lane.barrier()
            self._local.barrier()

    def attach_arena(self, regions: Regions) -> None:
        self._local.attach_arena(regions.of(self._neighbours))

    def abort(self, error: HvdError) -> None:
        with self._lock:
            self._error = self._error or error
        for part in self._parts:
            part.abort(self._error)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _by_local_rank(self, slices: Sequence[Spans]) -> list[Spans]:
        """Returns the slices of the lanes; local ranks without a lane get an empty one."""
        return [*slices, *[_NOTHING] * (len(self._neighbours) - len(slices))]

    def _to_others(self, spans: Sequence[Spans]) -> list[Spans]:
        """Reorders the ``spans`` of the ranks to the ring's order, and empties those of ranks of this host."""
        return [_NOTHING if rank in self._neighbours else spans[rank] for rank in self._order]

    def _between_hosts(self, matrix: Matrix) -> Matrix:
        """Reorders ``matrix`` to the ring's order, without the bytes that stay on a host."""
        between = matrix.copy()
        for ranks in self._hosts:
            between[np.ix_(ranks, ranks)] = 0
        return between[np.ix_(self._order, self._order)]


def _pieces(spans: Spans) -> int:
    """Returns the number of pieces that a batch is cut into."""
    return max(1, -(-int(spans[:, 2].sum()) // _PIECE_BYTES))


def _of(spans: Sequence[Spans], ranks: Sequence[int]) -> Spans:
    return np.concatenate([spans[rank] for rank in ranks])
