"""Collectives that reduce: all-reduce, reduce-scatter, reduce."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, cast

from hvdlite.engine.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.entry import Converted, Entry
from hvdlite.negotiation.handle import Handle
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.rows import even_splits
from hvdlite.ops.adapter import Compressor
from hvdlite.ops.handles import GroupHandle
from hvdlite.ops.numbers import is_number
from hvdlite.ops.submit import Calls, Draft, DraftInGroup, Reduction, entry_of, group_of, index_in
from hvdlite.tensors.buffer import NotAnArray
from hvdlite.tensors.dtypes import Average, Sum

T = TypeVar("T")


class Reductions(Calls[T]):
    """The collectives whose results are sums, averages, minima, maxima or products over the ranks.

    Shape, dtype and arguments are the same on all ranks. Integer averages and scaled integers are truncated toward
    zero; float16 and bfloat16 accumulate in float32. ``bool`` tensors take Sum and Max as *or*, Product and Min as
    *and*.
    """

    # ---- allreduce

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """The reduction of ``tensor`` over all ranks, as a new tensor; by default the average.

        The result is ``postscale_factor`` times the reduction of ``prescale_factor`` times each tensor. With
        ``compression`` the tensor travels in a smaller form. ``average`` is Horovod's older way to say ``op``.
        """
        tensor, context = _compressed(compression, tensor)
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        entry = self._alike(group, _ALLREDUCE, False, reduction, 0, name, tensor)
        reduced: T = self._result(group.run(entry))
        return _decompressed(compression, reduced, context)

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle:
        """Starts `allreduce` and returns its handle. The input must not change until the handle is done."""
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        return group.submit(self._alike(group, _ALLREDUCE, False, reduction, 0, name, tensor))

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Like `allreduce`, in place. Returns ``tensor`` itself."""
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        entry = self._alike(group, _ALLREDUCE, True, reduction, 0, name, tensor)
        reduced: T = self._result(group.run(entry))
        return reduced

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle:
        """Starts `allreduce_` and returns its handle."""
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        return group.submit(self._alike(group, _ALLREDUCE, True, reduction, 0, name, tensor))

    # ---- grouped allreduce

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """`allreduce` of several tensors, of any dtypes, that become ready on every rank together."""
        pairs = [_compressed(compression, tensor) for tensor in tensors]
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        draft = partial(self._alike, group, _ALLREDUCE, False, reduction, 0)
        handle = self._many(group, Kind.ALLREDUCE, name, [sent for sent, _ in pairs], draft, will_wait=True)
        results = self._result(handle)
        return [
            _decompressed(compression, result, context) for result, (_, context) in zip(results, pairs, strict=True)
        ]

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> GroupHandle:
        """Starts `grouped_allreduce` and returns one handle for the list."""
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        draft = partial(self._alike, group, _ALLREDUCE, False, reduction, 0)
        return self._many(group, Kind.ALLREDUCE, name, tensors, draft)

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Like `grouped_allreduce`, in place. Returns the tensors themselves."""
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        draft = partial(self._alike, group, _ALLREDUCE, True, reduction, 0)
        return cast(list[T], self._result(self._many(group, Kind.ALLREDUCE, name, tensors, draft, will_wait=True)))

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> GroupHandle:
        """Starts `grouped_allreduce_` and returns one handle for the list."""
        group = group_of(process_set)
        reduction = _reduction(average, op, prescale_factor, postscale_factor)
        draft = partial(self._alike, group, _ALLREDUCE, True, reduction, 0)
        return self._many(group, Kind.ALLREDUCE, name, tensors, draft)

    # ---- reducescatter

    def reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        compression: Compressor | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """This rank's rows of the reduction of ``tensor`` over all ranks.

        Rows, along the first dimension, are divided evenly; where that does not come out, the first ranks get one more.
        """
        tensor, context = _compressed(compression, tensor)
        group = group_of(process_set)
        draft = self._reducescatter(group, op, prescale_factor, postscale_factor)
        reduced: T = self._result(group.run(draft(name, tensor, 0)))
        return _decompressed(compression, reduced, context)

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle:
        """Starts `reducescatter` and returns its handle."""
        group = group_of(process_set)
        draft = self._reducescatter(group, op, prescale_factor, postscale_factor)
        return group.submit(draft(name, tensor, 0))

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        compression: Compressor | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """`reducescatter` of several tensors, of any dtypes, that become ready on every rank together."""
        pairs = [_compressed(compression, tensor) for tensor in tensors]
        group = group_of(process_set)
        draft = self._reducescatter(group, op, prescale_factor, postscale_factor)
        handle = self._many(group, Kind.REDUCESCATTER, name, [sent for sent, _ in pairs], draft, will_wait=True)
        results = self._result(handle)
        return [
            _decompressed(compression, result, context) for result, (_, context) in zip(results, pairs, strict=True)
        ]

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> GroupHandle:
        """Starts `grouped_reducescatter` and returns one handle for the list."""
        group = group_of(process_set)
        draft = self._reducescatter(group, op, prescale_factor, postscale_factor)
        return self._many(group, Kind.REDUCESCATTER, name, tensors, draft)

    # ---- reduce

    def reduce(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """The reduction of ``tensor`` over all ranks, on ``root_rank``; elsewhere a tensor without rows."""
        group = group_of(process_set)
        draft = self._reduce(group, root_rank, op, prescale_factor, postscale_factor)
        return cast(T, self._result(group.run(draft(name, tensor))))

    def reduce_async(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle:
        """Starts `reduce` and returns its handle."""
        group = group_of(process_set)
        draft = self._reduce(group, root_rank, op, prescale_factor, postscale_factor)
        return group.submit(draft(name, tensor))

    # ---- one tensor's part in each

    def _reducescatter(self, group: Group, op: int, prescale: float, postscale: float) -> DraftInGroup[T]:
        def draft(name: str | None, tensor: T, length: int) -> Entry:
            source, shape = self._rows_buffer(tensor, Kind.REDUCESCATTER)
            rows = even_splits(shape[0], group.size)[group.rank]
            output, target = self._adapter.empty((rows, *shape[1:]), tensor)
            reduction = (op, prescale, postscale)
            return entry_of(group, name, Kind.REDUCESCATTER, source, target, output, reduction, group_length=length)

        return draft

    def _reduce(self, group: Group, root_rank: int, op: int, prescale: float, postscale: float) -> Draft[T]:
        root = index_in(group, root_rank, "root_rank")

        def draft(name: str | None, tensor: T) -> Entry:
            try:
                source = self._adapter.buffer(tensor)
            except NotAnArray as refusal:
                scalar, convert = self._of_number(tensor, refusal)
                return Converted(draft(name, scalar), convert)
            _, _, shape, _ = source
            output, target = self._adapter.empty(shape if root == group.rank else (0, *shape[1:]), tensor)
            return entry_of(group, name, Kind.REDUCE, source, target, output, (op, prescale, postscale), root)

        return draft


_ALLREDUCE = Kind.ALLREDUCE  # to look a member of an Enum up takes 0.1 us


def _reduction(average: bool | None, op: Any, prescale: float, postscale: float) -> Reduction:
    if average is not None:
        if op is not None:
            raise ValueError("pass either op or average, not both; op is the one to keep")
        warnings.warn("average=... is deprecated; pass op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
        op = Average if average else Sum
    return Average if op is None else op, prescale, postscale


def _compressed(compression: Compressor | None, tensor: T) -> tuple[T, Any]:
    if compression is None:
        return tensor, None
    if is_number(tensor):
        return tensor, _AS_IT_WAS
    if not hasattr(compression, "compress"):
        raise ValueError(f"compression is one of hvd.Compression, or a class like these, not {compression!r:.60}")
    return compression.compress(tensor)


def _decompressed(compression: Compressor | None, tensor: T, context: Any) -> T:
    if compression is None or context is _AS_IT_WAS:
        return tensor
    return cast(T, compression.decompress(tensor, context))


_AS_IT_WAS = object()
"""The context of a number, which travels as it is."""
