"""The drafts (`hvdlite.ops.table`) of collectives that reduce: all-reduce, reduce-scatter, reduce."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, overload

from hvdlite.groups.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.entry import Entry, converted
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.rows import even_splits
from hvdlite.ops.adapter import Compressor
from hvdlite.ops.handles import GroupHandle, synchronize
from hvdlite.ops.numbers import Number, is_number
from hvdlite.ops.submit import Calls, Draft, Reduction, index_in
from hvdlite.session import group_of
from hvdlite.tensors.buffer import NotAnArray
from hvdlite.tensors.dtypes import Average, Sum

T = TypeVar("T")


class Reductions(Calls[T]):
    """Collectives whose results are sums, averages, minima, maxima, products or Adasum over the ranks.

    Shape, dtype and arguments must be the same on all ranks. Averages of integers and scaled integers are truncated
    toward zero. Sums and products of integers wrap around; averages do not. float16 and bfloat16 accumulate in float32.
    For ``bool``, Sum and Max are *or*, and Product and Min are *and*.

    A draft takes ``compression`` if its blocking form does.
    """

    # ---- allreduce

    def _allreduce(
        self,
        group: Group,
        is_in_place: bool,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Entry[T]:
        if average is not None:
            op = _op_of(average, op)
        reduction = (Average if op is None else op, prescale_factor, postscale_factor)
        if compression is None:
            return self._alike(group, _ALLREDUCE, is_in_place, reduction, 0, name, tensor)
        return compressed(compression, partial(self._alike, group, _ALLREDUCE, False, reduction, 0))(name, tensor)

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

    def allreduce(  # type: ignore[misc]  # T is a number here, too
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
        """Reduces ``tensor`` over all ranks, by default to the average, into a new tensor of the same shape and dtype.

        The result is ``postscale_factor`` times the reduction of ``prescale_factor`` times each tensor. With
        ``compression`` the tensor travels in a smaller form. ``average`` is Horovod's deprecated form of ``op``.
        ``tensor`` may be a number; then the result is a number, too.
        """
        group = group_of(process_set)
        entry = self._allreduce(group, False, tensor, average, name, compression, op, prescale_factor, postscale_factor)
        group.run(entry)
        return synchronize(entry)

    def _grouped_allreduce(
        self,
        group: Group,
        is_in_place: bool,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> GroupHandle[T]:
        """`allreduce` of several tensors, of any dtypes, that become ready on every rank together."""
        if average is not None:
            op = _op_of(average, op)
        reduction = (Average if op is None else op, prescale_factor, postscale_factor)
        draft = partial(self._alike, group, _ALLREDUCE, is_in_place, reduction, 0)
        return self._many(group, Kind.ALLREDUCE, name, tensors, compressed(compression, draft))

    def entries_of_allreduce(
        self, group: Group, is_in_place: bool, reduction: Reduction, name: str, tensors: Sequence[T]
    ) -> Sequence[Entry[T]]:
        """Makes the entries with which an optimizer reduces ``tensors``. Several tensors become a group."""
        if len(tensors) == 1:
            return [self._alike(group, _ALLREDUCE, is_in_place, reduction, 0, name, tensors[0])]
        draft = partial(self._alike, group, _ALLREDUCE, is_in_place, reduction, 0)
        return self._many(group, Kind.ALLREDUCE, name, tensors, draft).handles

    # ---- reducescatter

    def _reducescatter(
        self,
        group: Group,
        tensor: T,
        name: str | None = None,
        compression: Compressor | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Entry[T]:
        """Reduces ``tensor`` over all ranks, and returns this rank's rows of the result.

        Rows are along the first dimension, and divided evenly. If that leaves a remainder, each of the first ranks gets
        one row more. Scale factors and ``compression`` are as in `allreduce`.
        """
        draft = partial(self._own_rows, group, (op, prescale_factor, postscale_factor))
        return compressed(compression, draft)(name, tensor)

    def _grouped_reducescatter(
        self,
        group: Group,
        tensors: Sequence[T],
        name: str | None = None,
        compression: Compressor | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> GroupHandle[T]:
        """`reducescatter` of several tensors, of any dtypes, that become ready on every rank together."""
        draft = partial(self._own_rows, group, (op, prescale_factor, postscale_factor))
        return self._many(group, Kind.REDUCESCATTER, name, tensors, compressed(compression, draft))

    def _own_rows(self, group: Group, reduction: Reduction, name: str | None, tensor: T, length: int = 0) -> Entry[T]:
        source, shape = self._rows_buffer(tensor, Kind.REDUCESCATTER)
        rows = even_splits(shape[0], group.size)[group.rank]
        output, target = self._adapter.empty((rows, *shape[1:]), tensor)
        return self._entry_of(group, name, Kind.REDUCESCATTER, source, target, output, reduction, group_length=length)

    # ---- reduce

    def _reduce(
        self,
        group: Group,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Entry[T]:
        """Reduces ``tensor`` over all ranks, as `allreduce` does, to ``root_rank``. Other ranks get 0 rows.

        ``root_rank`` is a rank's number in the job, also in a process set.
        """
        root = index_in(group, root_rank, "root_rank")
        reduction = (op, prescale_factor, postscale_factor)
        try:
            source = self._adapter.buffer(tensor)
        except NotAnArray as refusal:
            scalar, convert = self._of_number(tensor, refusal)
            entry = self._reduce(group, scalar, root_rank, name, *reduction)
            return converted(entry, convert)
        _, _, shape, _, _ = source
        output, target = self._adapter.empty(shape if root == group.rank else (0, *shape[1:]), tensor)
        return self._entry_of(group, name, Kind.REDUCE, source, target, output, reduction, root)


_ALLREDUCE = Kind.ALLREDUCE  # looking a member up in an Enum is slow


def _op_of(average: bool, op: Any) -> int:
    if op is not None:
        raise ValueError("pass either op or average, not both; op is the one to keep")
    warnings.warn("average=... is deprecated; pass op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=4)
    return Average if average else Sum


def compressed(compression: Compressor | None, draft: Draft[T]) -> Draft[T]:
    """Returns a draft that compresses tensors with ``compression`` before it calls ``draft``. Numbers stay as they are.

    Raises ValueError if ``compression`` is no `Compressor`.
    """
    if compression is None:
        return draft
    if not hasattr(compression, "compress"):
        raise ValueError(f"compression must be one of hvd.Compression or a class like them, not {compression!r:.60}")

    def compressing(name: str | None, tensor: T, length: int = 0) -> Entry[T]:
        if is_number(tensor):
            return draft(name, tensor, length)
        sent, context = compression.compress(tensor)
        return converted(draft(name, sent, length), lambda reduced: compression.decompress(reduced, context))

    return compressing
