"""All forms of the collectives, for the tensors of one front end. `make forms` writes this file.

`hvdlite.ops.table` has their names. Each calls a draft of `Reductions` or `Transfers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.handle import Handle
from hvdlite.ops.adapter import Compressor
from hvdlite.ops.handles import GroupHandle, synchronize
from hvdlite.ops.reductions import Reductions
from hvdlite.ops.transfers import Transfers
from hvdlite.session import group_of
from hvdlite.tensors.dtypes import Average

T = TypeVar("T")


class Collectives(Reductions[T], Transfers[T]):
    """All collectives for the tensors of one front end.

    Every form takes a ``name`` that identifies the tensor on all ranks. Without names, all ranks must call collectives
    of the same kind in the same order. ``process_set`` has the ranks that take part, by default all ranks. Asynchronous
    forms return a handle for `poll` and `synchronize`, and forms that end in ``_`` write into their input.

    All forms raise ValueError for invalid arguments, and DuplicateName while a tensor of this name is in flight. If the
    collective fails, the blocking forms and `synchronize` raise a HorovodInternalError: `Mismatch` if ranks disagree,
    `PeerLost`, `Stalled`, `ShutDown`.
    """

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[T]:
        """Starts `allreduce` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(
            self._allreduce(group, False, tensor, average, name, None, op, prescale_factor, postscale_factor)
        )

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
        handle = self._allreduce(group, True, tensor, average, name, None, op, prescale_factor, postscale_factor)
        group.run(handle)
        return synchronize(handle)

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[T]:
        """Starts `allreduce_` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(
            self._allreduce(group, True, tensor, average, name, None, op, prescale_factor, postscale_factor)
        )

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
        group = group_of(process_set)
        handle = self._grouped_allreduce(
            group, False, tensors, average, name, compression, op, prescale_factor, postscale_factor
        )
        group.run_all(handle.handles)
        return synchronize(handle)

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> GroupHandle[T]:
        """Starts `grouped_allreduce` and returns one handle. Inputs must not change until it is done."""
        group = group_of(process_set)
        handle = self._grouped_allreduce(
            group, False, tensors, average, name, None, op, prescale_factor, postscale_factor
        )
        group.submit_all(handle.handles)
        return handle

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
        handle = self._grouped_allreduce(
            group, True, tensors, average, name, None, op, prescale_factor, postscale_factor
        )
        group.run_all(handle.handles)
        return synchronize(handle)

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> GroupHandle[T]:
        """Starts `grouped_allreduce_` and returns one handle. Inputs must not change until it is done."""
        group = group_of(process_set)
        handle = self._grouped_allreduce(
            group, True, tensors, average, name, None, op, prescale_factor, postscale_factor
        )
        group.submit_all(handle.handles)
        return handle

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
        """Reduces ``tensor`` over all ranks, and returns this rank's rows of the result.

        Rows are along the first dimension, and divided evenly. If that leaves a remainder, each of the first ranks gets
        one row more. Scale factors and ``compression`` are as in `allreduce`.
        """
        group = group_of(process_set)
        handle = self._reducescatter(group, tensor, name, compression, op, prescale_factor, postscale_factor)
        group.run(handle)
        return synchronize(handle)

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[T]:
        """Starts `reducescatter` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._reducescatter(group, tensor, name, None, op, prescale_factor, postscale_factor))

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
        group = group_of(process_set)
        handle = self._grouped_reducescatter(group, tensors, name, compression, op, prescale_factor, postscale_factor)
        group.run_all(handle.handles)
        return synchronize(handle)

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> GroupHandle[T]:
        """Starts `grouped_reducescatter` and returns one handle. Inputs must not change until it is done."""
        group = group_of(process_set)
        handle = self._grouped_reducescatter(group, tensors, name, None, op, prescale_factor, postscale_factor)
        group.submit_all(handle.handles)
        return handle

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
        """Reduces ``tensor`` over all ranks, as `allreduce` does, to ``root_rank``. Other ranks get 0 rows.

        ``root_rank`` is a rank's number in the job, also in a process set.
        """
        group = group_of(process_set)
        handle = self._reduce(group, tensor, root_rank, name, op, prescale_factor, postscale_factor)
        group.run(handle)
        return synchronize(handle)

    def reduce_async(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[T]:
        """Starts `reduce` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._reduce(group, tensor, root_rank, name, op, prescale_factor, postscale_factor))

    def allgather(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """Returns the tensors of all ranks concatenated along the first dimension, in rank order.

        The dtype and all dimensions but the first must be the same on all ranks; the first may differ and be 0.
        """
        group = group_of(process_set)
        handle = self._allgather(group, tensor, name)
        group.run(handle)
        return synchronize(handle)

    def allgather_async(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[T]:
        """Starts `allgather` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._allgather(group, tensor, name))

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """`allgather` of several tensors that become ready on every rank together."""
        group = group_of(process_set)
        handle = self._grouped_allgather(group, tensors, name)
        group.run_all(handle.handles)
        return synchronize(handle)

    def grouped_allgather_async(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> GroupHandle[T]:
        """Starts `grouped_allgather` and returns one handle. Inputs must not change until it is done."""
        group = group_of(process_set)
        handle = self._grouped_allgather(group, tensors, name)
        group.submit_all(handle.handles)
        return handle

    def broadcast(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Returns the tensor of ``root_rank`` as a new tensor. Shape and dtype must be the same on all ranks.

        ``root_rank`` is a rank's number in the job, also in a process set.
        """
        group = group_of(process_set)
        handle = self._broadcast(group, False, tensor, root_rank, name)
        group.run(handle)
        return synchronize(handle)

    def broadcast_async(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[T]:
        """Starts `broadcast` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._broadcast(group, False, tensor, root_rank, name))

    def broadcast_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Like `broadcast`, in place. Returns ``tensor`` itself."""
        group = group_of(process_set)
        handle = self._broadcast(group, True, tensor, root_rank, name)
        group.run(handle)
        return synchronize(handle)

    def broadcast_async_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[T]:
        """Starts `broadcast_` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._broadcast(group, True, tensor, root_rank, name))

    def grouped_broadcast(
        self,
        tensors: Sequence[T],
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """`broadcast` of several tensors, of any dtypes, that become ready on every rank together."""
        group = group_of(process_set)
        handle = self._grouped_broadcast(group, tensors, root_rank, name)
        group.run_all(handle.handles)
        return synchronize(handle)

    def grouped_broadcast_async(
        self,
        tensors: Sequence[T],
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> GroupHandle[T]:
        """Starts `grouped_broadcast` and returns one handle. Inputs must not change until it is done."""
        group = group_of(process_set)
        handle = self._grouped_broadcast(group, tensors, root_rank, name)
        group.submit_all(handle.handles)
        return handle

    def alltoall_async(
        self, tensor: T, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[tuple[T, T]]:
        """Starts `alltoall` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._alltoall(group, tensor, splits, name))

    def gather(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Like `allgather`, but only on ``root_rank``. Other ranks get 0 rows."""
        group = group_of(process_set)
        handle = self._gather(group, tensor, root_rank, name)
        group.run(handle)
        return synchronize(handle)

    def gather_async(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[T]:
        """Starts `gather` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._gather(group, tensor, root_rank, name))

    def scatter(
        self,
        tensor: T,
        root_rank: int,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Returns this rank's rows of the tensor of ``root_rank``.

        On the root, ``splits`` has the number of rows for each rank. Without splits, rows are divided evenly; if that
        leaves a remainder, each of the first ranks gets one row more. Other ranks pass a tensor with the same dtype and
        the same shape after the first dimension. Their rows and splits are ignored.
        """
        group = group_of(process_set)
        handle = self._scatter(group, tensor, root_rank, splits, name)
        group.run(handle)
        return synchronize(handle)

    def scatter_async(
        self,
        tensor: T,
        root_rank: int,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[T]:
        """Starts `scatter` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._scatter(group, tensor, root_rank, splits, name))

    def send(self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
        """Sends ``tensor`` to ``rank``, which calls `recv`. Returns once ``rank`` has received it.

        Only these two ranks call anything. Without names, messages match in order: the first `send` to ``rank`` meets
        its first `recv` from this rank.
        """
        group = group_of(process_set)
        handle = self._send(group, tensor, rank, name)
        group.run(handle)
        return synchronize(handle)

    def send_async(
        self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[None]:
        """Starts `send` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._send(group, tensor, rank, name))

    def recv(self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """Receives a new tensor, with the shape and dtype of ``tensor``, from ``rank``, which calls `send`."""
        group = group_of(process_set)
        handle = self._recv(group, False, tensor, rank, name)
        group.run(handle)
        return synchronize(handle)

    def recv_async(
        self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[T]:
        """Starts `recv` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._recv(group, False, tensor, rank, name))

    def recv_(self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """Like `recv`, in place. Returns ``tensor`` itself."""
        group = group_of(process_set)
        handle = self._recv(group, True, tensor, rank, name)
        group.run(handle)
        return synchronize(handle)

    def recv_async_(
        self, tensor: T, rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Handle[T]:
        """Starts `recv_` and returns its handle. The input must not change until it is done."""
        group = group_of(process_set)
        return group.submit(self._recv(group, True, tensor, rank, name))
