"""What the stream of a GPU is given for each collective: NCCL's calls, and what comes before and after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from hvdlite.cuda.memory import copy
from hvdlite.planes.nccl.gpu import Gpu
from hvdlite.planes.nccl.library import BYTES
from hvdlite.planes.nccl.packing import (
    Pack,
    Piece,
    across,
    gather,
    in_one_piece,
    is_even,
    packed_bytes,
    place,
    scatter,
)
from hvdlite.planes.nccl.reduction import Reduction
from hvdlite.tensors.buffer import Spans, in_place, paired

Group = Callable[[], AbstractContextManager[None]]
"""Makes a context whose calls NCCL gets as one, and has launched at its end."""


def allreduce(gpu: Gpu, group: Group, spans: Spans, chosen: Reduction) -> None:
    if chosen.has_kernels:  # what is multiplied is not read again
        gpu.mover.move(spans, chosen.element, chosen.before)
        spans = in_place(spans)
    with gpu.operation(chosen) as operation, group():
        for read, write, nbytes in spans.tolist():
            if nbytes:
                gpu.communicator.call("ncclAllReduce", read, write, chosen.count(nbytes), chosen.dtype, operation)
    if chosen.has_kernels:
        gpu.mover.move(spans, chosen.element, chosen.after)


def packed_allreduce(gpu: Gpu, group: Group, spans: Spans, chosen: Reduction) -> None:
    """Gives one call between two launches of a kernel, which also multiplies."""
    address, (into, out) = gpu.packs.address, in_one_piece(spans, gpu.packs.address)
    gpu.mover.move(into, chosen.element, chosen.before)
    with group():
        count = chosen.count(packed_bytes(spans))
        gpu.communicator.call("ncclAllReduce", address, address, count, chosen.dtype, chosen.operation)
    gpu.mover.move(out, chosen.element, chosen.after)


def packed_reducescatter(gpu: Gpu, group: Group, parts: Sequence[Spans], rank: int, chosen: Reduction) -> None:
    """Does as `packed_allreduce`. The parts are equal."""
    address, (into, out) = gpu.packs.address, in_one_piece(np.concatenate(parts), gpu.packs.address)
    part, own = packed_bytes(parts[rank]), _rows_of(rank, parts)
    gpu.mover.move(into, chosen.element, chosen.before)
    with group():
        arguments = address, address + rank * part, chosen.count(part), chosen.dtype, chosen.operation
        gpu.communicator.call("ncclReduceScatter", *arguments)
    gpu.mover.move(out[own], chosen.element, chosen.after)


def reducescatter(gpu: Gpu, group: Group, parts: Sequence[Spans], rank: int, chosen: Reduction) -> None:
    """Gives a reduce-scatter of each row of equal parts, and otherwise a reduce of each row to the rank of its part.

    The latter is slower, and needs no memory, so it is also for ranks that may not have it.
    """
    rows: list[tuple[list[Piece], int, int, int]]  # pieces to read; the root; its address to write and the bytes there
    if is_scattered := is_even(parts) and not gpu.packs.is_out:
        own = parts[rank].tolist()
        rows = [(pieces, rank, *row[1:]) for pieces, row in zip(across(parts, 0), own, strict=True)]
    else:
        rows = [
            ([(read, nbytes)], root, write if root == rank else 0, nbytes)
            for root, spans in enumerate(parts)
            for read, write, nbytes in spans.tolist()
            if nbytes
        ]
    packs = [Pack(pieces, is_copy=chosen.before != 1) for pieces, *_ in rows]
    place(packs, gpu.scratch)
    gather(packs, gpu.mover, chosen.element, chosen.before)
    with gpu.operation(chosen) as operation, group():
        for pack, (_, root, write, nbytes) in zip(packs, rows, strict=True):
            arguments = pack.address, write, chosen.count(nbytes), chosen.dtype, operation
            if is_scattered:
                gpu.communicator.call("ncclReduceScatter", *arguments)
            else:
                gpu.communicator.call("ncclReduce", *arguments, root)
    gpu.mover.move(in_place(parts[rank]), chosen.element, chosen.after)


def packed_allgather(gpu: Gpu, group: Group, streams: Sequence[Spans], rank: int) -> None:
    """Gives one call between two launches of a kernel. The streams are equal."""
    address, (into, out) = gpu.packs.address, in_one_piece(np.concatenate(streams), gpu.packs.address)
    stream = packed_bytes(streams[rank])
    gpu.mover.move(into[_rows_of(rank, streams)])
    with group():
        gpu.communicator.call("ncclAllGather", address + rank * stream, address, stream, BYTES)
    gpu.mover.move(out)


def allgather(gpu: Gpu, group: Group, streams: Sequence[Spans], rank: int) -> None:
    """Gives an all-gather of each row of equal parts, and otherwise a broadcast of each row of each rank.

    The latter is slower, and needs no memory, so it is also for ranks that may not have it.
    """
    if gpu.packs.is_out or not is_even(streams):
        with group():
            for root, spans in enumerate(streams):
                for read, write, nbytes in spans.tolist():
                    if nbytes:
                        source = read if root == rank else write
                        gpu.communicator.call("ncclBroadcast", source, write, nbytes, BYTES, root)
        return
    packs = [Pack(pieces) for pieces in across(streams, 1)]
    place(packs, gpu.scratch)
    with group():
        for pack, (read, _, nbytes) in zip(packs, streams[rank].tolist(), strict=True):
            gpu.communicator.call("ncclAllGather", read, pack.address, nbytes, BYTES)
    scatter(packs, gpu.mover)


def alltoall(gpu: Gpu, group: Group, sends: Sequence[Spans], receives: Sequence[Spans], rank: int) -> None:
    """Gives one message from each rank to each other, packed if it has many rows."""
    peers = [peer for peer in range(len(sends)) if peer != rank]
    outs = [Pack((read, nbytes) for read, _, nbytes in sends[peer].tolist()) for peer in peers]
    intos = [Pack((write, nbytes) for _, write, nbytes in receives[peer].tolist()) for peer in peers]
    place([*outs, *intos], gpu.scratch)
    gather(outs, gpu.mover)
    for read, write, nbytes in paired(sends[rank], receives[rank]):
        copy(write, read, nbytes, gpu.stream)
    with group():
        for peer, out, into in zip(peers, outs, intos, strict=True):
            if out.nbytes:
                gpu.communicator.call("ncclSend", out.address, out.nbytes, BYTES, peer)
            if into.nbytes:
                gpu.communicator.call("ncclRecv", into.address, into.nbytes, BYTES, peer)
    scatter(intos, gpu.mover)


def _rows_of(rank: int, lists: Sequence[Spans]) -> slice:
    """Returns the rows of a rank among those of all ranks, which have equally many."""
    count = len(lists[rank])
    return slice(rank * count, (rank + 1) * count)
