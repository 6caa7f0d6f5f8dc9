"""Collectives that reduce: all-reduce, reduce-scatter, reduce."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, cast, overload

from hvdlite.groups.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.entry import Entry, converted
from hvdlite.negotiation.handle import Handle
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.rows import even_splits
from hvdlite.ops.adapter import Compressor
from hvdlite.ops.forms import asynchronous, blocking, drafted_by
from hvdlite.ops.handles import GroupHandle, run
from hvdlite.ops.numbers import Number, is_number
from hvdlite.ops.submit import Calls, Reduction, index_in
from hvdlite.session import group_of
from hvdlite.tensors.buffer import NotAnArray
from hvdlite.tensors.dtypes import Average, Sum

T = TypeVar("T")


class Reductions(Calls[T]):
    """The collectives whose results are sums, averages, minima, maxima or products over the ranks.

    Shape, dtype and arguments are the same on all ranks. Integer averages and scaled integers are truncated toward
    zero; sums and products of integers wrap around, and averages do not. float16 and bfloat16 accumulate in float32.
    ``bool`` tensors take Sum and Max as *or*, Product and Min as *and*.
    """

    # ---- allreduce

    def _allreduce(
        self,
        is_in_place: bool,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[T]:
        if average is not None:
            op = _op_of(average, op)
        reduction = (Average if op is None else op, prescale_factor, postscale_factor)
        return self._alike(group_of(process_set), _ALLREDUCE, is_in_place, reduction, 0, name, tensor)

    @overload
    def allreduce(
        self,
        tensor: Number,
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Number: ...

    @overload
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
    ) -> T: ...

    @drafted_by(_allreduce, is_in_place=False)  # type: ignore[misc]  # T is a number here, too
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
        """Reduces ``tensor`` over all ranks into a new tensor; by default to the average.

        The result is ``postscale_factor`` times the reduction of ``prescale_factor`` times each tensor. With
        ``compression`` the tensor travels in a smaller form. ``average`` is Horovod's deprecated form of ``op``.
        """
        sent, context = _compressed(compression, tensor)
        handle = self._allreduce(False, sent, average, name, op, prescale_factor, postscale_factor, process_set)
        return _decompressed(compression, run(handle), context)

    @asynchronous(_allreduce, is_in_place=False)
    def allreduce_async(self) -> None:
        """Starts `allreduce` and returns its handle. The input must not change until the handle is done."""

    @blocking(_allreduce, is_in_place=True)
    def allreduce_(self) -> None:
        """Like `allreduce`, in place. Returns ``tensor`` itself."""

    @asynchronous(_allreduce, is_in_place=True)
    def allreduce_async_(self) -> None:
        """Starts `allreduce_` and returns its handle."""

    # ---- grouped allreduce

    def _grouped_allreduce(
        self,
        is_in_place: bool,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> GroupHandle[T]:
        group = group_of(process_set)
        if average is not None:
            op = _op_of(average, op)
        reduction = (Average if op is None else op, prescale_factor, postscale_factor)
        draft = partial(self._alike, group, _ALLREDUCE, is_in_place, reduction, 0)
        return self._many(group, Kind.ALLREDUCE, name, tensors, draft)

    @drafted_by(_grouped_allreduce, is_in_place=False)
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
        sent = [tensor for tensor, _ in pairs]
        scales = (prescale_factor, postscale_factor)
        results = run(self._grouped_allreduce(False, sent, average, name, op, *scales, process_set))
        return [_decompressed(compression, *pair) for pair in zip(results, _contexts(pairs), strict=True)]

    @asynchronous(_grouped_allreduce, is_in_place=False)
    def grouped_allreduce_async(self) -> None:
        """Starts `grouped_allreduce` and returns one handle for the list."""

    @blocking(_grouped_allreduce, is_in_place=True)
    def grouped_allreduce_(self) -> None:
        """Like `grouped_allreduce`, in place. Returns the tensors themselves."""

    @asynchronous(_grouped_allreduce, is_in_place=True)
    def grouped_allreduce_async_(self) -> None:
        """Starts `grouped_allreduce_` and returns one handle for the list."""

    def entries_of_allreduce(
        self, group: Group, is_in_place: bool, reduction: Reduction, name: str, tensors: Sequence[T]
    ) -> Sequence[Entry[T]]:
        """Makes the entries with which an optimizer reduces ``tensors``, several of them as a group."""
        if len(tensors) == 1:
            return [self._alike(group, _ALLREDUCE, is_in_place, reduction, 0, name, tensors[0])]
        draft = partial(self._alike, group, _ALLREDUCE, is_in_place, reduction, 0)
        return cast(Sequence[Entry[T]], self._many(group, Kind.ALLREDUCE, name, tensors, draft).handles)

    # ---- reducescatter

    def _reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[T]:
        reduction = (op, prescale_factor, postscale_factor)
        return self._own_rows(group_of(process_set), reduction, name, tensor)

    @drafted_by(_reducescatter)
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
        """Returns this rank's rows of the reduction of ``tensor`` over all ranks.

        Rows, along the first dimension, are divided evenly; where that does not come out, the first ranks get one more.
        """
        sent, context = _compressed(compression, tensor)
        handle = self._reducescatter(sent, name, op, process_set, prescale_factor, postscale_factor)
        return _decompressed(compression, run(handle), context)

    @asynchronous(_reducescatter)
    def reducescatter_async(self) -> None:
        """Starts `reducescatter` and returns its handle."""

    def _grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> GroupHandle[T]:
        group = group_of(process_set)
        draft = partial(self._own_rows, group, (op, prescale_factor, postscale_factor))
        return self._many(group, Kind.REDUCESCATTER, name, tensors, draft)

    @drafted_by(_grouped_reducescatter)
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
        sent = [tensor for tensor, _ in pairs]
        results = run(self._grouped_reducescatter(sent, name, op, process_set, prescale_factor, postscale_factor))
        return [_decompressed(compression, *pair) for pair in zip(results, _contexts(pairs), strict=True)]

    @asynchronous(_grouped_reducescatter)
    def grouped_reducescatter_async(self) -> None:
        """Starts `grouped_reducescatter` and returns one handle for the list."""

    def _own_rows(self, group: Group, reduction: Reduction, name: str | None, tensor: T, length: int = 0) -> Entry[T]:
        source, shape = self._rows_buffer(tensor, Kind.REDUCESCATTER)
        rows = even_splits(shape[0], group.size)[group.rank]
        output, target = self._adapter.empty((rows, *shape[1:]), tensor)
        return self._entry_of(group, name, Kind.REDUCESCATTER, source, target, output, reduction, group_length=length)

    # ---- reduce

    def _reduce(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[T]:
        group = group_of(process_set)
        root = index_in(group, root_rank, "root_rank")
        reduction = (op, prescale_factor, postscale_factor)
        try:
            source = self._adapter.buffer(tensor)
        except NotAnArray as refusal:
            scalar, convert = self._of_number(tensor, refusal)
            entry = self._reduce(scalar, root_rank, name, *reduction, process_set)
            return converted(cast(Entry[T], entry), convert)
        _, _, shape, _, _ = source
        output, target = self._adapter.empty(shape if root == group.rank else (0, *shape[1:]), tensor)
        return self._entry_of(group, name, Kind.REDUCE, source, target, output, reduction, root)

    @blocking(_reduce)
    def reduce(self) -> None:
        """Reduces ``tensor`` over all ranks, on ``root_rank``; elsewhere returns a tensor without rows."""

    @asynchronous(_reduce)
    def reduce_async(self) -> None:
        """Starts `reduce` and returns its handle."""


_ALLREDUCE = Kind.ALLREDUCE  # spares a submit the lookup of an Enum's member


def _op_of(average: bool, op: Any) -> int:
    if op is not None:
        raise ValueError("pass either op or average, not both; op is the one to keep")
    warnings.warn("average=... is deprecated; pass op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=4)
    return Average if average else Sum


def _compressed(compression: Compressor | None, tensor: T) -> tuple[T, Any]:
    if compression is None:
        return tensor, None
    if is_number(tensor):
        return tensor, _AS_IT_WAS
    if not hasattr(compression, "compress"):
        raise ValueError(f"compression must be one of hvd.Compression or a class like them, not {compression!r:.60}")
    return compression.compress(tensor)


def _contexts(pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    return [context for _, context in pairs]


def _decompressed(compression: Compressor | None, tensor: T, context: Any) -> T:
    if compression is None or context is _AS_IT_WAS:
        return tensor
    return cast(T, compression.decompress(tensor, context))


_AS_IT_WAS = object()
"""The context of a number, which travels as it is."""
