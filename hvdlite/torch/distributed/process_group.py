"""A process group of torch.distributed whose collectives are hvdlite's.

Ranks call the same collectives in the same order, as torch.distributed asks of every program, so calls are numbered:
collectives together, and messages for each pair of ranks, direction and tag. If ranks call different things under one
number, all of them get a Mismatch.
"""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed

from hvdlite.errors import HvdError
from hvdlite.ops import Average, Group, GroupHandle, Handle, Kind, Max, Min, Product, Sum, exit_group, leave_group
from hvdlite.ops.submit import NOTHING, Reduction, entry_of
from hvdlite.torch.collectives.adapter import TensorAdapter, supports
from hvdlite.torch.collectives.tensors import collectives
from hvdlite.torch.distributed.work import Futures, Result, Work, Works, backend_error, given, is_done_within, nothing

_Op = distributed.ReduceOp
_OPS: Final = ((_Op.SUM, Sum), (_Op.AVG, Average), (_Op.MIN, Min), (_Op.MAX, Max), (_Op.PRODUCT, Product))
_LEAVE_S: Final = 5.0  # for what is in flight on all ranks
_EXIT_S: Final = 1.0
_open: Final = weakref.WeakSet["ProcessGroup"]()
_adapter: Final = TensorAdapter()
_Base: Any = distributed.ProcessGroup  # whose methods also have the forms that other back ends take from C++
_BITWISE: Final[tuple[tuple[Any, Callable[..., torch.Tensor]], ...]] = (
    (_Op.BAND, torch.bitwise_and),
    (_Op.BOR, torch.bitwise_or),
    (_Op.BXOR, torch.bitwise_xor),
)


class ProcessGroup(_Base):  # type: ignore[misc]
    """The ranks of ``group``. Only tensors in CPU memory; what torch.distributed refuses for Gloo may work here."""

    def __init__(self, group: Group, timeout: timedelta) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._timeout = timeout
        self._futures = Futures(f"hvdlite-futures-{group.rank}")
        self._name = ""
        self._description = ""
        self._coalesced: list[Work] | None = None
        self._calls = 0
        _open.add(self)

    # ---- what torch asks about the group

    def getBackendName(self) -> str:
        return "hvdlite"

    name = getBackendName

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    _set_group_desc = setGroupDesc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if device.type != "cpu":
            raise RuntimeError(f"this group of hvdlite has no backend for {device}")
        return self

    supports_splitting = False
    supports_coalescing = True

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        pass

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    # ---- the end

    def shutdown(self) -> None:
        """Leaves the group once all ranks leave it, since others may still send each other messages.

        Leaves it at once if another rank makes a call instead, which fails, or is lost; and after the timeout.
        """
        entry: Any = entry_of(self._group, self._next(), Kind.BARRIER, NOTHING)
        with suppress(HvdError):
            self._group.submit_all((entry,))
            is_done_within(self._group, entry, self._timeout.total_seconds())
        leave_group(self._group, _LEAVE_S)
        self._futures.close()
        _open.discard(self)

    def abort(self) -> None:
        """Leaves the group now. Calls in flight fail, on the other ranks too."""
        leave_group(self._group, 0.0)
        self._futures.close()
        _open.discard(self)

    def exit(self) -> None:
        """Ends the part of a process that exits without a word: no thread may be in C++ when Python ends."""
        exit_group(self._group, _EXIT_S)
        self._futures.close(_EXIT_S)

    # ---- collectives

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        opts = opts or distributed.AllreduceOptions()
        (tensor,) = tensors
        if tensor.layout is not torch.strided:
            return self._sparse(tensor, opts)
        if (combine := _bitwise(opts.reduceOp)) is not None:
            return self._reduced_here(tensor, combine, opts)
        into, back = _writable(tensor)
        handle = collectives.draft(
            "allreduce_", self._group, _real(into), name=self._next(), **_reduction(opts.reduceOp)
        )
        return self._start(handle, opts, back)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        opts = opts or distributed.AllreduceCoalescedOptions()
        pairs = [_writable(tensor) for tensor in tensors]
        into = [_real(each) for each, _ in pairs]
        reduction = _reduction(opts.reduceOp)
        handle = collectives.draft("grouped_allreduce_", self._group, into, name=self._next(), **reduction)
        return self._start(handle, opts, lambda outputs: [tensor for _, back in pairs for tensor in back(None)])

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        opts = opts or distributed.BroadcastOptions()
        (tensor,) = tensors
        into, back = _writable(tensor)
        root = self._group.ranks[opts.rootRank]
        handle = collectives.draft("broadcast_", self._group, _typed(into), name=self._next(), root_rank=root)
        return self._start(handle, opts, back)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        opts = opts or distributed.ReduceOptions()
        (tensor,) = tensors
        if (combine := _bitwise(opts.reduceOp)) is not None:
            return self._reduced_here(tensor, combine, opts)
        is_root = opts.rootRank == self._group.rank
        root = self._group.ranks[opts.rootRank]
        reduction = _reduction(opts.reduceOp)
        flat = _real(tensor.contiguous()).reshape(-1)
        handle = collectives.draft("reduce", self._group, flat, root_rank=root, name=self._next(), **reduction)
        return self._start(handle, opts, lambda output: _copied([tensor], [output]) if is_root else [tensor])

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        (into,), (tensor,) = outputs, tensors
        handle = collectives.draft("allgather", self._group, _plain(tensor.contiguous()), name=self._next())
        return self._start(handle, opts, lambda output: _divided(output, into, tensor))

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        if output.numel() != tensor.numel() * self._group.size or output.dtype != tensor.dtype:
            raise ValueError(f"all_gather: {_of(output)} has no room for {self._group.size} times {_of(tensor)}")
        into, back = _writable(output)
        target = _plain(into)

        def allocate(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[torch.Tensor, int]:
            # Where ranks differ in their numbers of elements, the result goes elsewhere.
            found = target if shape[0] == len(target) else torch.empty(shape, dtype=target.dtype, device="cpu")
            return found, found.data_ptr()

        def finish(found: torch.Tensor) -> Result:
            if found is not target:
                raise ValueError(f"all_gather: the ranks have {len(found)} elements, but {len(target)} fit")
            return back(None)

        source = _adapter.buffer(_plain(tensor.contiguous()))
        entry: Any = entry_of(self._group, self._next(), Kind.ALLGATHER, source, allocate=allocate)
        return self._start(entry, opts, finish)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        opts = opts or distributed.ReduceScatterOptions()
        size = self._group.size
        if tensor.numel() != output.numel() * size or output.dtype != tensor.dtype:
            raise ValueError(f"reduce_scatter: {_of(tensor)} is not {size} times {_of(output)}")
        if (combine := _bitwise(opts.reduceOp)) is not None:
            whole = tensor.clone().reshape(-1)
            count, first = output.numel(), self._group.rank * output.numel()
            return self._reduced_here(whole, combine, opts, lambda: _copied([output], [whole[first : first + count]]))
        into, back = _writable(output)
        target, reduction = _real(into).reshape(-1), _reduction(opts.reduceOp)
        scales: Reduction = (reduction["op"], reduction.get("prescale_factor", 1.0), 1.0)
        address, *_ = _adapter.buffer(target, True)
        source = _adapter.buffer(_real(tensor.contiguous()).reshape(-1))
        entry: Any = entry_of(self._group, self._next(), Kind.REDUCESCATTER, source, address, target, scales)
        return self._start(entry, opts, back)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        (output,), (parts,) = outputs, tensors
        return self.reduce_scatter_single(output, _joined(parts), opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        size = self._group.size
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits and rows % size:
            raise ValueError(f"all_to_all: {rows} rows do not divide among {size} ranks; pass input_split_sizes")
        counts = list(splits) or [rows // size] * size
        if sum(counts) != rows or len(counts) != size:
            raise ValueError(f"all_to_all: input_split_sizes {counts} are not {size} parts of {rows} rows")
        into, back = _writable(output)
        expected = tuple(output_splits) or (len(output) // size,) * size
        width = math.prod(tensor.shape[1:]) * _width(tensor.dtype)
        target = _plain(into).reshape(len(into), -1) if into.numel() else into
        return self._all_to_all(_plain(tensor).reshape(rows, width), counts, target, expected, opts, back)

    def _all_to_all(
        self,
        rows: torch.Tensor,
        counts: Sequence[int],
        target: torch.Tensor,
        expected: Sequence[int],
        opts: Any,
        finish: Callable[[Any], Result],
    ) -> Work:
        handle = collectives.draft("alltoall", self._group, rows, splits=counts, name=self._next())

        def placed(output: tuple[torch.Tensor, torch.Tensor]) -> Result:
            received, found = output
            if tuple(found.tolist()) != tuple(expected):
                raise ValueError(f"all_to_all: expected {list(expected)} rows of each rank, got {found.tolist()}")
            if received.numel():
                target.copy_(received.reshape(target.shape))
            return finish(None)

        return self._start(handle, opts, placed)

    def alltoall(self, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        flat = _joined(tensors)
        target = torch.empty(sum(each.numel() for each in outputs), dtype=flat.dtype, device="cpu")
        sent, room = [each.numel() for each in tensors], [each.numel() for each in outputs]
        rows, into = _plain(flat), _plain(target)
        width = _width(flat.dtype)

        def finish(output: Any) -> Result:
            return _copied(outputs, torch.split(target, room))

        counts, expected = [each * width for each in sent], [each * width for each in room]
        return self._all_to_all(rows, counts, into, expected, opts, finish)

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        opts = opts or distributed.GatherOptions()
        (tensor,) = tensors
        is_root = opts.rootRank == self._group.rank
        root = self._group.ranks[opts.rootRank]
        handle = collectives.draft(
            "gather", self._group, _plain(tensor.contiguous()), root_rank=root, name=self._next()
        )
        return self._start(handle, opts, lambda output: _divided(output, outputs[0], tensor) if is_root else [])

    def scatter(
        self, outputs: Sequence[torch.Tensor], tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        opts = opts or distributed.ScatterOptions()
        (output,) = outputs
        is_root = opts.rootRank == self._group.rank
        root = self._group.ranks[opts.rootRank]
        if is_root and any(part.numel() != output.numel() for part in tensors[0]):
            raise ValueError(f"scatter: all parts must be of the size of the output, {output.numel()} elements")
        flat = _plain(_joined(tensors[0])) if is_root else _plain(torch.empty(0, dtype=output.dtype, device="cpu"))
        handle = collectives.draft("scatter", self._group, flat, root_rank=root, name=self._next())
        return self._start(handle, opts, lambda received: _divided(received, [output], output))

    def barrier(self, opts: Any = None) -> Work:
        opts = opts or distributed.BarrierOptions()
        entry: Any = entry_of(self._group, self._next(), Kind.BARRIER, NOTHING)
        return self._start(entry, opts, nothing)

    # ---- messages

    def send(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        (tensor,) = tensors
        name = self._group.next_call(f"{self._group.rank} to {peer}, tag {tag}: ")
        flat = _plain(tensor.contiguous())
        handle = collectives.draft("send", self._group, flat, rank=self._group.ranks[peer], name=name)
        return self._start(handle, None, given(tensors))

    def recv(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        (tensor,) = tensors
        into, back = _writable(tensor)
        name = self._group.next_call(f"{peer} to {self._group.rank}, tag {tag}: ")
        handle = collectives.draft("recv_", self._group, _plain(into), rank=self._group.ranks[peer], name=name)
        return self._start(handle, None, back, peer)

    # ---- several calls that end together

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return Works(self._group, self._futures, works)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        works = [
            self.allgather([[into[index] for into in outputs]], [tensor], opts) for index, tensor in enumerate(tensors)
        ]
        return self._together(works)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._together([self.all_gather_single(*pair, opts) for pair in zip(outputs, tensors, strict=True)])

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._together([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, tensors, strict=True)])

    def _together(self, works: Sequence[Work]) -> Work:
        return Works(self._group, self._futures, works)

    # The names of torch before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- the steps that all calls share

    def _next(self) -> Any:
        self._calls += 1
        return self._group.next_call()

    def _start(
        self,
        handle: Handle[Any] | GroupHandle[Any],
        opts: Any,
        finish: Callable[[Any], Result],
        sender: int = -1,
    ) -> Work:
        """Submits ``handle``. A call that is not asynchronous is done when this returns."""
        entries: Any = handle.handles if isinstance(handle, GroupHandle) else (handle,)
        try:
            if opts is None or opts.asyncOp or self._coalesced is not None:
                self._group.submit_all(entries)
            else:
                self._group.run_all(entries)
        except HvdError as error:
            raise backend_error(error) from error
        work = Work(self._group, self._futures, handle, finish, sender)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _reduced_here(
        self,
        tensor: torch.Tensor,
        combine: Callable[..., torch.Tensor],
        opts: Any,
        then: Callable[[], Result] | None = None,
    ) -> Work:
        """Reduces ``tensor`` in place with an operation that the data planes do not have."""
        handle = collectives.draft("allgather", self._group, _plain(tensor.contiguous()), name=self._next())

        def finish(output: torch.Tensor) -> Result:
            first, *rest = output.view(self._group.size, *tensor.shape)
            for other in rest:
                first = combine(first, other)
            tensor.copy_(first)
            return [tensor] if then is None else then()

        return self._start(handle, opts, finish)

    def _sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        """Adds sparse tensors: gathers indices and values."""
        if opts.reduceOp != _Op.SUM:
            raise ValueError("hvdlite reduces sparse tensors with SUM only")
        whole = tensor.coalesce()
        indices, values = whole.indices().t().contiguous(), whole.values().contiguous()
        handles = [collectives.draft("allgather", self._group, part, name=self._next()) for part in (indices, values)]

        def finish(output: Any) -> Result:
            found = output[0].t(), output[1]
            total = torch.sparse_coo_tensor(*found, tensor.shape, dtype=tensor.dtype).coalesce()
            tensor.copy_(total)
            return [tensor]

        return self._start(GroupHandle(handles), opts, finish)  # type: ignore[arg-type]


def _reduction(op: Any) -> dict[str, Any]:
    for theirs, ours in _OPS:
        if op == theirs:
            return {"op": ours}
    if op == _Op.PREMUL_SUM:
        return {"op": Sum, "prescale_factor": float(op.factor)}
    raise ValueError(f"hvdlite cannot reduce with {op}")


def _bitwise(op: Any) -> Callable[..., torch.Tensor] | None:
    return next((combine for theirs, combine in _BITWISE if op == theirs), None)


def _of(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _writable(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[Any], Result]]:
    """Returns a contiguous tensor to write into, and what then makes ``tensor`` of it."""
    if tensor.is_contiguous():
        return tensor, given([tensor])
    dense = tensor.detach().contiguous()
    return dense, lambda _: _copied([tensor], [dense])


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a complex tensor as pairs of numbers, which are added one by one."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _typed(tensor: torch.Tensor) -> torch.Tensor:
    """Returns ``tensor``, contiguous, or its bytes if hvdlite lacks its dtype."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor if supports(tensor.dtype) else tensor.reshape(-1).view(torch.uint8)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return _typed(tensor).reshape(-1)


def _width(dtype: torch.dtype) -> int:
    """The elements that `_plain` makes of one."""
    return 1 if supports(dtype) else dtype.itemsize


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _copied(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Result:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source.view(target.dtype).view(target.shape))
    return list(targets)


def _divided(output: torch.Tensor, into: Sequence[torch.Tensor], like: torch.Tensor) -> Result:
    """Copies equal parts of ``output``, one of each rank, into the tensors of ``into``."""
    whole = output.view(like.dtype)
    counts = [each.numel() for each in into]
    if len(whole) != sum(counts):
        raise ValueError(f"the ranks have {len(whole)} elements together, but the tensors for them {sum(counts)}")
    return _copied(into, torch.split(whole, counts))


@atexit.register
def _exit() -> None:
    for group in list(_open):
        group.exit()
