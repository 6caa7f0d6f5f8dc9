"""The drafts (`hvdlite.ops.table`) of all-gather, broadcast, all-to-all, gather, scatter, send and receive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, cast, overload

from hvdlite.groups.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.entry import Allocate, Entry
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.rows import even_splits
from hvdlite.ops.handles import GroupHandle, run, synchronize_all
from hvdlite.ops.submit import UNCHANGED, Calls, entry_of, index_in, named, whole_number
from hvdlite.session import group_of
from hvdlite.tensors.buffer import NotAnArray

T = TypeVar("T")


class Transfers(Calls[T]):
    """Collectives that move rows unchanged. Rows are along the first dimension."""

    # ---- allgather

    def _allgather(self, group: Group, tensor: T, name: str | None = None) -> Entry[T]:
        """Returns the tensors of all ranks concatenated along the first dimension, in rank order.

        The dtype and all dimensions but the first must be the same on all ranks; the first may differ and be 0.
        """
        return self._all_rows(group, name, tensor)

    def _grouped_allgather(self, group: Group, tensors: Sequence[T], name: str | None = None) -> GroupHandle[T]:
        """`allgather` of several tensors that become ready on every rank together."""
        return self._many(group, Kind.ALLGATHER, name, tensors, partial(self._all_rows, group))

    def _all_rows(self, group: Group, name: str | None, tensor: T, length: int = 0) -> Entry[T]:
        source, _ = self._rows_buffer(tensor, Kind.ALLGATHER)
        allocate = self._allocator(tensor)
        return self._entry_of(group, name, Kind.ALLGATHER, source, allocate=allocate, group_length=length)

    # ---- broadcast

    def _broadcast(
        self, group: Group, is_in_place: bool, tensor: T, root_rank: int, name: str | None = None
    ) -> Entry[T]:
        """Returns the tensor of ``root_rank`` as a new tensor. Shape and dtype must be the same on all ranks.

        ``root_rank`` is a rank's number in the job, also in a process set.
        """
        root = index_in(group, root_rank, "root_rank")
        return self._alike(group, Kind.BROADCAST, is_in_place, UNCHANGED, root, name, tensor)

    def _grouped_broadcast(
        self, group: Group, tensors: Sequence[T], root_rank: int, name: str | None = None
    ) -> GroupHandle[T]:
        """`broadcast` of several tensors, of any dtypes, that become ready on every rank together."""
        root = index_in(group, root_rank, "root_rank")
        draft = partial(self._alike, group, Kind.BROADCAST, False, UNCHANGED, root)
        return self._many(group, Kind.BROADCAST, name, tensors, draft)

    def broadcast_all_(self, group: Group, named: Sequence[tuple[str, T]], root_rank: int) -> list[T]:
        """`broadcast_` of several tensors, each under its own name. An interrupted call has submitted all or none.

        Raises ValueError for an invalid tensor or name, before it submits any.
        """
        entries = []
        root = index_in(group, root_rank, "root_rank")
        for name, tensor in named:
            try:
                entries.append(self._alike(group, Kind.BROADCAST, True, UNCHANGED, root, name, tensor))
            except ValueError as error:
                raise ValueError(f"cannot broadcast {name!r}: {error}") from error
        group.run_all(entries)
        return synchronize_all(entries)

    # ---- alltoall

    def _alltoall(self, group: Group, tensor: T, splits: Any = None, name: str | None = None) -> Entry[tuple[T, T]]:
        (address, dtype, shape, owner, device), (rows, *_) = self._rows_buffer(tensor, Kind.ALLTOALL)
        if splits is None and rows % group.size:
            raise ValueError(
                f"alltoall without splits divides rows evenly, but {rows} rows are not a multiple of {group.size} "
                "ranks; pass splits"
            )
        counts = even_splits(rows, group.size) if splits is None else _checked_splits(splits, rows, group.size)
        source = (address, dtype, (sum(counts), *shape[1:]), owner, device)
        allocate = self._allocator_of_pair(tensor)
        return self._entry_of(group, name, Kind.ALLTOALL, source, allocate=allocate, splits=counts)

    @overload
    def alltoall(
        self, tensor: T, splits: None = None, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T: ...

    @overload
    def alltoall(
        self, tensor: T, splits: Any, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> tuple[T, T]: ...

    def alltoall(
        self, tensor: T, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T | tuple[T, T]:
        """Sends rows of ``tensor`` to each rank. Returns the rows from all ranks, concatenated in rank order.

        ``splits`` has the number of rows for each rank, counted from the first row on; further rows are not sent.
        Without splits, rows are divided evenly. With splits, returns a tuple: the rows, and the number of rows from
        each rank as a one-dimensional int32 tensor. The asynchronous form always returns the tuple.
        """
        output, received_splits = run(self._alltoall(group_of(process_set), tensor, splits, name))
        return output if splits is None else (output, received_splits)

    def _allocator_of_pair(self, like: T) -> Allocate:
        def allocate(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[tuple[Any, T], int]:
            output, address = self._adapter.empty(shape, like)
            return (output, self._adapter.counts(rows)), address

        return allocate

    # ---- one root

    def _gather(self, group: Group, tensor: T, root_rank: int, name: str | None = None) -> Entry[T]:
        """Like `allgather`, but only on ``root_rank``. Other ranks get 0 rows."""
        root = index_in(group, root_rank, "root_rank")
        source, _ = self._rows_buffer(tensor, Kind.GATHER)
        return self._entry_of(group, name, Kind.GATHER, source, root=root, allocate=self._allocator(tensor))

    def _scatter(
        self, group: Group, tensor: T, root_rank: int, splits: Any = None, name: str | None = None
    ) -> Entry[T]:
        """Returns this rank's rows of the tensor of ``root_rank``.

        On the root, ``splits`` has the number of rows for each rank. Without splits, rows are divided evenly; if that
        leaves a remainder, each of the first ranks gets one row more. Other ranks pass a tensor with the same dtype and
        the same shape after the first dimension. Their rows and splits are ignored.
        """
        root = index_in(group, root_rank, "root_rank")
        (address, dtype, shape, owner, device), (rows, *_) = self._rows_buffer(tensor, Kind.SCATTER)
        counts: tuple[int, ...] = ()
        if root == group.rank:
            counts = even_splits(rows, group.size) if splits is None else _checked_splits(splits, rows, group.size)
        source = (address, dtype, (sum(counts), *shape[1:]), owner, device)
        allocate = self._allocator(tensor)
        return self._entry_of(group, name, Kind.SCATTER, source, root=root, allocate=allocate, splits=counts)

    # ---- two ranks

    def _send(self, group: Group, tensor: T, rank: int, name: str | None = None) -> Entry[None]:
        """Sends ``tensor`` to ``rank``, which calls `recv`. Returns once ``rank`` has received it.

        Only these two ranks call anything. Without names, messages match in order: the first `send` to ``rank`` meets
        its first `recv` from this rank.
        """
        peer = _peer(group, rank)
        try:
            source = self._adapter.buffer(tensor)
        except NotAnArray as refusal:
            source = self._adapter.buffer(self._of_number(tensor, refusal)[0])
        return _message(group, group.rank, peer, name, entry_of(group, "", Kind.SEND, source))

    def _recv(self, group: Group, is_in_place: bool, tensor: T, rank: int, name: str | None = None) -> Entry[T]:
        """Receives a new tensor, with the shape and dtype of ``tensor``, from ``rank``, which calls `send`."""
        sender = _peer(group, rank)
        entry = self._alike(group, Kind.SEND, is_in_place, UNCHANGED, 0, "", tensor)
        return _message(group, sender, group.rank, name, entry)

    # ---- parts of calls (`hvdlite.ops.objects`)

    def allgather_part(self, part: str, tensor: T, name: str | None, group: Group) -> Entry[T]:
        """Makes the entry of an `allgather` that is one part of a call named ``name``."""
        return _part_of_call(group, Kind.ALLGATHER, name, part, self._all_rows(group, "", tensor))

    def broadcast_part(self, part: str, tensor: T, root_rank: int, name: str | None, group: Group) -> Entry[T]:
        """Makes the entry of a `broadcast_` that is one part of a call named ``name``."""
        root = index_in(group, root_rank, "root_rank")
        entry = self._alike(group, Kind.BROADCAST, True, UNCHANGED, root, "", tensor)
        return _part_of_call(group, Kind.BROADCAST, name, part, entry)


def _message(group: Group, sender: int, receiver: int, name: str | None, entry: Entry[T]) -> Entry[T]:
    """Turns ``entry`` into the entry of one side of a message."""
    source, target = group.ranks[sender], group.ranks[receiver]
    given, _ = named(group, Kind.SEND, name, (source, target))
    entry.rename(given + f" from {source} to {target}", is_cacheable=False)
    entry.request = entry.request._replace(root=sender, peer=receiver)
    return entry


def _part_of_call(group: Group, kind: Kind, name: str | None, part: str, entry: Entry[T]) -> Entry[T]:
    """Names ``entry``. Each part has its own counter, because the later part of an interrupted call may come late."""
    given, is_given = named(group, kind, name, part)
    entry.rename(given + f".{part}", is_given)
    return entry


def _checked_splits(splits: Any, rows: int, size: int) -> tuple[int, ...]:
    listed = splits.tolist() if hasattr(splits, "tolist") else splits
    try:
        counts = [whole_number(count) for count in listed]
    except TypeError:
        raise ValueError(f"splits must be {size} numbers, one for each rank, not {splits!r}") from None
    if len(counts) != size:
        raise ValueError(f"splits must be {size} numbers, one for each rank, but there are {len(counts)}")
    if any(count is None or count < 0 for count in counts):
        raise ValueError(f"splits must be non-negative integers, not {list(listed)}")
    whole = cast(list[int], counts)
    if sum(whole) > rows:
        raise ValueError(f"splits add up to {sum(whole)} rows, but the tensor has {rows}")
    return tuple(whole)


def _peer(group: Group, rank: Any) -> int:
    peer = index_in(group, rank, "rank")
    if peer == group.rank:
        raise ValueError(f"rank {rank} is this rank itself; a message goes from one rank to another")
    return peer
