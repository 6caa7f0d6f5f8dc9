"""Collectives that move rows as they are: all-gather, broadcast, all-to-all, gather, scatter, send and receive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, cast

from hvdlite.engine.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.entry import Allocate, Entry
from hvdlite.negotiation.handle import Handle
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.rows import even_splits
from hvdlite.ops.handles import GroupHandle, synchronize_all
from hvdlite.ops.submit import UNCHANGED, Calls, Draft, DraftInGroup, entry_of, group_of, index_in, named, whole_number
from hvdlite.tensors.buffer import NotAnArray

T = TypeVar("T")


class Movements(Calls[T]):
    """The collectives that hand out what the ranks have. Rows are along the first dimension."""

    # ---- allgather

    def allgather(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """The tensors of all ranks joined along the first dimension, in rank order.

        All dimensions but the first are the same on all ranks; the first may differ and be 0.
        """
        group = group_of(process_set)
        handle = group.run(self._allgather(group)(name, tensor, 0))
        return cast(T, self._result(handle))

    def allgather_async(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `allgather` and returns its handle."""
        group = group_of(process_set)
        return group.submit(self._allgather(group)(name, tensor, 0))

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """`allgather` of several tensors that become ready on every rank together."""
        group = group_of(process_set)
        handle = self._many(group, Kind.ALLGATHER, name, tensors, self._allgather(group), will_wait=True)
        return cast(list[T], self._result(handle))

    def grouped_allgather_async(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> GroupHandle:
        """Starts `grouped_allgather` and returns one handle for the list."""
        group = group_of(process_set)
        return self._many(group, Kind.ALLGATHER, name, tensors, self._allgather(group))

    # ---- broadcast

    def broadcast(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """The tensor of ``root_rank``, as a new tensor on every rank. Shape and dtype are the same on all ranks.

        ``root_rank`` is a rank's number in the job, also in a process set.
        """
        group = group_of(process_set)
        draft = self._broadcast(group, root_rank, False)
        return cast(T, self._result(group.run(draft(name, tensor))))

    def broadcast_async(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `broadcast` and returns its handle."""
        group = group_of(process_set)
        return group.submit(self._broadcast(group, root_rank, False)(name, tensor))

    def broadcast_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Like `broadcast`, in place. Returns ``tensor`` itself."""
        group = group_of(process_set)
        draft = self._broadcast(group, root_rank, True)
        return cast(T, self._result(group.run(draft(name, tensor))))

    def broadcast_async_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `broadcast_` and returns its handle."""
        group = group_of(process_set)
        return group.submit(self._broadcast(group, root_rank, True)(name, tensor))

    def broadcast_all_(
        self, named: Sequence[tuple[str, T]], root_rank: int, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """`broadcast_` of several tensors, each under its own name. An interrupt finds all of them submitted, or none.

        Raises ValueError for a tensor or a name that cannot be; then none is.
        """
        group = group_of(process_set)
        draft, entries = self._broadcast(group, root_rank, True), []
        for name, tensor in named:
            try:
                entries.append(draft(name, tensor))
            except ValueError as error:
                raise ValueError(f"cannot broadcast {name!r}: {error}") from error
        group.run_all(entries)
        return synchronize_all(entries)

    # ---- alltoall

    def alltoall(
        self, tensor: T, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T | tuple[T, T]:
        """Sends rows of ``tensor`` to each rank, and returns what all ranks sent here, joined in rank order.

        ``splits`` are the rows for each rank, in order from the first row on; rows that are left stay here. Without
        splits, rows are divided evenly. With splits, returns the tensor and the number of rows from each rank, int32.
        """
        output, received_splits = self._result(self._start_alltoall(tensor, splits, name, process_set, will_wait=True))
        return output if splits is None else (output, received_splits)

    def alltoall_async(
        self, tensor: T, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `alltoall` and returns its handle, whose result is always the pair."""
        return self._start_alltoall(tensor, splits, name, process_set)

    # ---- one root

    def gather(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Like `allgather`, on ``root_rank``; elsewhere a tensor without rows."""
        group = group_of(process_set)
        handle = group.run(self._gather(group, root_rank)(name, tensor))
        return cast(T, self._result(handle))

    def gather_async(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `gather` and returns its handle."""
        group = group_of(process_set)
        return group.submit(self._gather(group, root_rank)(name, tensor))

    def scatter(
        self,
        tensor: T,
        root_rank: int,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """This rank's rows of the tensor of ``root_rank``.

        ``splits`` on the root are the rows for each rank; without them rows are divided evenly, and where that does not
        come out, the first ranks get one more. On other ranks only dtype and shape after the first dimension of
        ``tensor`` count, and splits are ignored.
        """
        group = group_of(process_set)
        handle = group.run(self._scatter(group, root_rank, splits)(name, tensor))
        return cast(T, self._result(handle))

    def scatter_async(
        self,
        tensor: T,
        root_rank: int,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Handle:
        """Starts `scatter` and returns its handle."""
        group = group_of(process_set)
        return group.submit(self._scatter(group, root_rank, splits)(name, tensor))

    # ---- two ranks

    def send(self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
        """Sends ``tensor`` to ``rank``, which calls `recv`; returns when it has been received.

        Only these two ranks call anything. Without a name, the first send to a rank meets its first receive from here.
        """
        self._result(self._start_send(tensor, rank, name, process_set, will_wait=True))

    def send_async(
        self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `send` and returns its handle, whose result is None."""
        return self._start_send(tensor, rank, name, process_set)

    def recv(self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """What ``rank`` sends here, as a new tensor with the shape and dtype of ``tensor``."""
        return cast(T, self._result(self._start_recv(tensor, rank, False, name, process_set, will_wait=True)))

    def recv_async(
        self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `recv` and returns its handle."""
        return self._start_recv(tensor, rank, False, name, process_set)

    def recv_(self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """Like `recv`, in place. Returns ``tensor`` itself."""
        return cast(T, self._result(self._start_recv(tensor, rank, True, name, process_set, will_wait=True)))

    def recv_async_(
        self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle:
        """Starts `recv_` and returns its handle."""
        return self._start_recv(tensor, rank, True, name, process_set)

    # ---- parts of calls (`hvdlite.ops.objects`)

    def allgather_part(self, part: str, tensor: T, name: str | None, group: Group) -> Entry:
        """The entry of an `allgather` that is one part of a call of this ``name``."""
        return _part_of_call(group, Kind.ALLGATHER, name, part, self._allgather(group)("", tensor, 0))

    def broadcast_part(self, part: str, tensor: T, root_rank: int, name: str | None, group: Group) -> Entry:
        """The entry of a `broadcast_` that is one part of a call of this ``name``."""
        return _part_of_call(group, Kind.BROADCAST, name, part, self._broadcast(group, root_rank, True)("", tensor))

    # ---- one tensor's part in each

    def _allgather(self, group: Group) -> DraftInGroup[T]:
        def draft(name: str | None, tensor: T, length: int) -> Entry:
            source, _ = self._rows_buffer(tensor, Kind.ALLGATHER)
            allocate = self._allocator(tensor)
            return entry_of(group, name, Kind.ALLGATHER, source, allocate=allocate, group_length=length)

        return draft

    def _broadcast(self, group: Group, root_rank: int, is_in_place: bool) -> Draft[T]:
        root = index_in(group, root_rank, "root_rank")

        return partial(self._alike, group, Kind.BROADCAST, is_in_place, UNCHANGED, root)

    def _start_alltoall(
        self, tensor: T, splits: Any, name: str | None, process_set: ProcessSet, will_wait: bool = False
    ) -> Handle:
        group = group_of(process_set)

        def draft(name: str | None, tensor: T) -> Entry:
            (address, dtype, shape, owner), (rows, *_) = self._rows_buffer(tensor, Kind.ALLTOALL)
            if splits is None and rows % group.size:
                raise ValueError(
                    f"alltoall without splits divides rows evenly, but {rows} rows are not a multiple of {group.size} "
                    "ranks; pass splits"
                )
            counts = even_splits(rows, group.size) if splits is None else _checked_splits(splits, rows, group.size)
            source = (address, dtype, (sum(counts), *shape[1:]), owner)
            allocate = self._allocator_of_pair(tensor)
            return entry_of(group, name, Kind.ALLTOALL, source, allocate=allocate, splits=counts)

        entry = draft(name, tensor)
        return group.run(entry) if will_wait else group.submit(entry)

    def _allocator_of_pair(self, like: T) -> Allocate:
        def allocate(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[tuple[T, T], int]:
            output, address = self._adapter.empty(shape, like)
            return (output, self._adapter.counts(rows)), address

        return allocate

    def _gather(self, group: Group, root_rank: int) -> Draft[T]:
        root = index_in(group, root_rank, "root_rank")

        def draft(name: str | None, tensor: T) -> Entry:
            source, _ = self._rows_buffer(tensor, Kind.GATHER)
            allocate = self._allocator(tensor)
            return entry_of(group, name, Kind.GATHER, source, root=root, allocate=allocate)

        return draft

    def _scatter(self, group: Group, root_rank: int, splits: Any) -> Draft[T]:
        root = index_in(group, root_rank, "root_rank")

        def draft(name: str | None, tensor: T) -> Entry:
            (address, dtype, shape, owner), (rows, *_) = self._rows_buffer(tensor, Kind.SCATTER)
            counts: tuple[int, ...] = ()
            if root == group.rank:
                counts = even_splits(rows, group.size) if splits is None else _checked_splits(splits, rows, group.size)
            source = (address, dtype, (sum(counts), *shape[1:]), owner)
            allocate = self._allocator(tensor)
            return entry_of(group, name, Kind.SCATTER, source, root=root, allocate=allocate, splits=counts)

        return draft

    def _start_send(
        self, tensor: T, rank: int, name: str | None, process_set: ProcessSet, will_wait: bool = False
    ) -> Handle:
        group = group_of(process_set)
        peer = _peer(group, rank)
        try:
            source = self._adapter.buffer(tensor)
        except NotAnArray as refusal:
            source = self._adapter.buffer(self._of_number(tensor, refusal)[0])
        entry = entry_of(group, "", Kind.SEND, source)
        return self._start_message(group, group.rank, peer, name, entry, will_wait)

    def _start_recv(
        self,
        tensor: T,
        rank: int,
        is_in_place: bool,
        name: str | None,
        process_set: ProcessSet,
        will_wait: bool = False,
    ) -> Handle:
        group = group_of(process_set)
        sender = _peer(group, rank)
        entry = self._alike(group, Kind.SEND, is_in_place, UNCHANGED, 0, "", tensor)
        return self._start_message(group, sender, group.rank, name, entry, will_wait)

    @staticmethod
    def _start_message(
        group: Group, sender: int, receiver: int, name: str | None, entry: Entry, will_wait: bool
    ) -> Handle:
        """Either side of a message: ``entry`` has the tensor of this side."""
        source, target = group.ranks[sender], group.ranks[receiver]
        given, _ = named(group, Kind.SEND, name, (source, target))
        entry.rename(given + f" from {source} to {target}", is_cacheable=False)
        entry.request = entry.request._replace(root=sender, peer=receiver)
        return group.run(entry) if will_wait else group.submit(entry)


def _part_of_call(group: Group, kind: Kind, name: str | None, part: str, entry: Entry) -> Entry:
    """``entry`` under its name. Each part is counted by itself: that of an interrupted call may come late."""
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
        raise ValueError(f"splits must be whole numbers from 0 on, not {list(listed)}")
    whole = cast(list[int], counts)
    if sum(whole) > rows:
        raise ValueError(f"splits add up to {sum(whole)} rows, but the tensor has {rows}")
    return tuple(whole)


def _peer(group: Group, rank: Any) -> int:
    peer = index_in(group, rank, "rank")
    if peer == group.rank:
        raise ValueError(f"rank {rank} is this rank itself; a message goes from one rank to another")
    return peer
