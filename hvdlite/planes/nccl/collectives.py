"""What the stream of a GPU is given for each collective: NCCL's calls, and what comes before and after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from hvdlite.cuda.memory import copy
from hvdlite.planes.nccl.gpu import Gpu
from hvdlite.planes.nccl.library import BYTES
from hvdlite.planes.nccl.packing import Pack, across, is_even
from hvdlite.planes.nccl.reduction import Reduction
from hvdlite.tensors.buffer import Spans, paired

Group = Callable[[], AbstractContextManager[None]]
"""Makes a context whose calls NCCL gets as one, and has launched at its end."""


def allreduce(gpu: Gpu, group: Group, spans: Spans, chosen: Reduction) -> None:
    with gpu.operation(chosen) as operation, group():
        for read, write, nbytes in spans.tolist():
            if nbytes:
                gpu.communicator.call("ncclAllReduce", read, write, chosen.count(nbytes), chosen.dtype, operation)


def reducescatter(gpu: Gpu, group: Group, parts: Sequence[Spans], rank: int, chosen: Reduction) -> None:
    """Gives reduce-scatters of packs of equal parts, and otherwise a reduce to the rank of each part."""
    if not is_even(parts):
        with gpu.operation(chosen) as operation, group():
            for root, spans in enumerate(parts):
                for read, write, nbytes in spans.tolist():
                    if nbytes:
                        arguments = read, write if root == rank else 0, chosen.count(nbytes), chosen.dtype, operation
                        gpu.communicator.call("ncclReduce", *arguments, root)
        return
    packs = [Pack(gpu.stream, pieces) for pieces in across(parts, 0)]
    for pack in packs:
        pack.gather()
    with gpu.operation(chosen) as operation, group():
        for pack, (_, write, nbytes) in zip(packs, parts[rank].tolist(), strict=True):
            arguments = pack.address, write, chosen.count(nbytes), chosen.dtype, operation
            gpu.communicator.call("ncclReduceScatter", *arguments)
    for pack in packs:
        pack.close()


def allgather(gpu: Gpu, group: Group, streams: Sequence[Spans], rank: int) -> None:
    """Gives all-gathers to packs of equal parts, and otherwise a broadcast from each rank."""
    if not is_even(streams):
        with group():
            for root, spans in enumerate(streams):
                for read, write, nbytes in spans.tolist():
                    if nbytes:
                        source = read if root == rank else write
                        gpu.communicator.call("ncclBroadcast", source, write, nbytes, BYTES, root)
        return
    packs = [Pack(gpu.stream, pieces) for pieces in across(streams, 1)]
    with group():
        for pack, (read, _, nbytes) in zip(packs, streams[rank].tolist(), strict=True):
            gpu.communicator.call("ncclAllGather", read, pack.address, nbytes, BYTES)
    for pack in packs:
        pack.scatter()
        pack.close()


def alltoall(gpu: Gpu, group: Group, sends: Sequence[Spans], receives: Sequence[Spans], rank: int) -> None:
    """Gives one message from each rank to each other, packed if it has many rows."""
    peers = [peer for peer in range(len(sends)) if peer != rank]
    outs = [Pack(gpu.stream, [(read, nbytes) for read, _, nbytes in sends[peer].tolist()]) for peer in peers]
    intos = [Pack(gpu.stream, [(write, nbytes) for _, write, nbytes in receives[peer].tolist()]) for peer in peers]
    for out in outs:
        out.gather()
    for read, write, nbytes in paired(sends[rank], receives[rank]):
        copy(write, read, nbytes, gpu.stream)
    with group():
        for peer, out, into in zip(peers, outs, intos, strict=True):
            if out.nbytes:
                gpu.communicator.call("ncclSend", out.address, out.nbytes, BYTES, peer)
            if into.nbytes:
                gpu.communicator.call("ncclRecv", into.address, into.nbytes, BYTES, peer)
    for into in intos:
        into.scatter()
    for pack in (*outs, *intos):
        pack.close()
