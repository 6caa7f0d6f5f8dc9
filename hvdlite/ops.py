"""The collectives, written once for every front end, and their numpy form.

`Collectives` knows tensors only through an `Adapter`, which turns one into a buffer and makes empty ones. The functions
of this module are its methods with numpy arrays; a front end makes an instance with its own adapter.

A submit costs a request, an entry and a handle, one lock, and one wake-up for a burst; no byte is copied.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from hvdlite.core.buffer import Buffer, of_array
from hvdlite.core.dtypes import OP_NAMES, Adasum, Average, DType, Sum
from hvdlite.core.entry import Allocate, Entry
from hvdlite.core.handle import Handle
from hvdlite.core.messages import Kind, Request
from hvdlite.core.wire import MAX_DIMENSIONS, MAX_NAME_CHARACTERS
from hvdlite.session import current

T = TypeVar("T")


class Adapter(Protocol[T]):
    """A front end's tensors."""

    def buffer(self, tensor: T, is_written: bool = False) -> Buffer:
        """The memory of ``tensor``.

        Raises ValueError if it is no tensor, not contiguous and aligned, of an unknown dtype, or ``is_written`` and
        read-only.
        """

    def empty(self, shape: Sequence[int], like: T) -> T:
        """A new contiguous tensor with the dtype of ``like``; called from any thread."""


class Compressor(Protocol):
    """Makes a tensor smaller for its journey; `decompress` gets back what `compress` returned."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever `decompress` needs to know."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """The tensor as it was before."""


class Collectives(Generic[T]):
    """All collectives for the tensors of one front end.

    Every function takes a ``name`` by which ranks find each other's tensors: without one, ranks must call functions of
    the same kind in the same order. Asynchronous forms return a handle for `poll` and `synchronize`, and forms that end
    in ``_`` write into their input. All raise ValueError for arguments that cannot be, DuplicateName while a tensor of
    this name is in flight, and from `synchronize` a HorovodInternalError if the collective did not happen: `Mismatch`
    when ranks disagree, `PeerLost`, `Stalled`, `ShutDown`.
    """

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter

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
    ) -> T:
        """The reduction of ``tensor`` over all ranks, as a new tensor; by default the average.

        Shape and dtype are the same on all ranks. Integer averages and scaled integers are truncated toward zero;
        float16 and bfloat16 accumulate in float32. ``bool`` tensors take Sum and Max as *or*, Product and Min as *and*.
        """
        context = None
        if compression is not None:
            tensor, context = compression.compress(tensor)
        reduced = self._result(
            self._allreduce(tensor, False, average, name, op, prescale_factor, postscale_factor, will_wait=True)
        )
        return reduced if compression is None else cast(T, compression.decompress(reduced, context))

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle:
        """Starts `allreduce` and returns its handle. The input must not change until the handle is done."""
        return self._allreduce(tensor, False, average, name, op, prescale_factor, postscale_factor)

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Like `allreduce`, in place. Returns ``tensor`` itself."""
        return self._result(
            self._allreduce(tensor, True, average, name, op, prescale_factor, postscale_factor, will_wait=True)
        )

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle:
        """Starts `allreduce_` and returns its handle."""
        return self._allreduce(tensor, True, average, name, op, prescale_factor, postscale_factor)

    # ---- allgather

    def allgather(self, tensor: T, name: str | None = None) -> T:
        """The tensors of all ranks joined along the first dimension, in rank order.

        All dimensions but the first are the same on all ranks; the first may differ and be 0.
        """
        return self._result(self._allgather(tensor, name, will_wait=True))

    def allgather_async(self, tensor: T, name: str | None = None) -> Handle:
        """Starts `allgather` and returns its handle."""
        return self._allgather(tensor, name)

    # ---- broadcast

    def broadcast(self, tensor: T, root_rank: int, name: str | None = None) -> T:
        """The tensor of ``root_rank``, as a new tensor on every rank. Shape and dtype are the same on all ranks."""
        return self._result(self._broadcast(tensor, False, root_rank, name, will_wait=True))

    def broadcast_async(self, tensor: T, root_rank: int, name: str | None = None) -> Handle:
        """Starts `broadcast` and returns its handle."""
        return self._broadcast(tensor, False, root_rank, name)

    def broadcast_(self, tensor: T, root_rank: int, name: str | None = None) -> T:
        """Like `broadcast`, in place. Returns ``tensor`` itself."""
        return self._result(self._broadcast(tensor, True, root_rank, name, will_wait=True))

    def broadcast_async_(self, tensor: T, root_rank: int, name: str | None = None) -> Handle:
        """Starts `broadcast_` and returns its handle."""
        return self._broadcast(tensor, True, root_rank, name)

    @staticmethod
    def _result(handle: Handle) -> T:
        result: T = synchronize(handle)
        return result

    def _buffers(self, tensor: T, is_in_place: bool) -> tuple[Buffer, Buffer, T]:
        """What is read, what is written, and the tensor that it belongs to."""
        source = self._adapter.buffer(tensor, is_in_place)
        if is_in_place:
            return source, source, tensor
        output = self._adapter.empty(source.shape, tensor)
        return source, self._adapter.buffer(output), output

    def _allreduce(
        self,
        tensor: T,
        is_in_place: bool,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale: float,
        postscale: float,
        will_wait: bool = False,
    ) -> Handle:
        op = _reduce_op(average, op)
        source, target, output = self._buffers(tensor, is_in_place)
        if prescale != prescale or postscale != postscale:
            raise ValueError("a scale factor is not a number (NaN)")
        if source.dtype is DType.BOOL and op == Average:
            raise ValueError("a bool tensor has no average; pass op=hvd.Min, Max, Sum or Product")
        return _submit(
            Kind.ALLREDUCE, source, target, output, name, op, float(prescale), float(postscale), will_wait=will_wait
        )

    def _allgather(self, tensor: T, name: str | None, will_wait: bool = False) -> Handle:
        source = self._adapter.buffer(tensor)
        if not source.shape:
            raise ValueError("allgather needs a tensor with at least one dimension; reshape a scalar to (1,)")

        def allocate(shape: tuple[int, ...]) -> tuple[T, Buffer]:
            output = self._adapter.empty(shape, tensor)
            return output, self._adapter.buffer(output)

        return _submit(Kind.ALLGATHER, source, None, None, name, allocate=allocate, will_wait=will_wait)

    def _broadcast(
        self, tensor: T, is_in_place: bool, root_rank: int, name: str | None, will_wait: bool = False
    ) -> Handle:
        size = current().settings.size
        root = _index(root_rank)
        if root is None or not 0 <= root < size:
            raise ValueError(f"root_rank {root_rank!r} is not a rank of this job; it must be from 0 to {size - 1}")
        source, target, output = self._buffers(tensor, is_in_place)
        return _submit(Kind.BROADCAST, source, target, output, name, root=root, will_wait=will_wait)


def barrier() -> None:
    """Returns after every rank has called it. Does not wait for collectives that are in flight."""
    synchronize(_submit(Kind.BARRIER, _NOTHING, _NOTHING, None, None, will_wait=True))


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once. Raises ValueError for a handle that was synchronized already."""
    if not isinstance(handle, Handle) or handle.is_taken:
        raise ValueError(f"{handle!r} is not a handle in flight; each handle is synchronized once")
    return handle.is_done


def synchronize(handle: Handle) -> Any:
    """Waits for a handle and returns its result, or raises what made it fail. None if it was synchronized already."""
    if not isinstance(handle, Handle):
        raise ValueError(f"{handle!r} is not a handle; pass what an asynchronous collective returned")
    if handle.is_taken:
        return None
    if not handle.is_done:
        current().wait(handle)
    handle.is_taken = True
    result, handle.output = handle.output, None
    if handle.error is not None:
        # Handles may share an error, but not the traceback that raising it adds.
        raise copy.copy(handle.error) from handle.error.__cause__
    return result


_NOTHING = Buffer(0, 0, DType.UINT8, (), None)


def _submit(
    kind: Kind,
    source: Buffer,
    target: Buffer | None,
    output: Any,
    name: str | None,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    allocate: Allocate | None = None,
    will_wait: bool = False,
) -> Handle:
    session = current()
    is_named = name is not None
    known_as = _checked_name(name) if name is not None else session.automatic_name(kind)
    if len(source.shape) > MAX_DIMENSIONS:
        raise ValueError(f"tensor has {len(source.shape)} dimensions; at most {MAX_DIMENSIONS} are supported")
    handle = Handle(known_as)
    handle.output = output
    request = Request(known_as, kind, source.dtype, source.shape, op, prescale, postscale, root, is_named)
    session.submit(Entry(request, source, target, allocate, handle), will_wait)
    return handle


def _index(value: Any) -> int | None:
    """``value`` as an int if it is a whole number of any type."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS:
        raise ValueError(f"a tensor's name is text of at most {MAX_NAME_CHARACTERS} characters, not {name!r:.60}")
    return name


def _reduce_op(average: bool | None, op: int | None) -> int:
    if average is not None:
        if op is not None:
            raise ValueError("pass either op or average, not both; op is the one to keep")
        return Average if average else Sum
    if op is None:
        return Average
    number = op if type(op) is int else _index(op)  # numpy's integers are welcome
    if number is None or number == Adasum or number not in OP_NAMES:
        legal = ", ".join(f"hvd.{name}" for each, name in OP_NAMES.items() if each != Adasum)
        raise ValueError(f"op {OP_NAMES.get(op, op)} is not supported; use one of {legal}")
    return number


class _NumpyAdapter:
    """C-contiguous numpy arrays."""

    def buffer(self, tensor: npt.NDArray[Any], is_written: bool = False) -> Buffer:
        return of_array(tensor, is_written)

    def empty(self, shape: Sequence[int], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.empty(shape, like.dtype)


_numpy = Collectives[npt.NDArray[Any]](_NumpyAdapter())
allreduce = _numpy.allreduce
allreduce_async = _numpy.allreduce_async
allreduce_ = _numpy.allreduce_
allreduce_async_ = _numpy.allreduce_async_
allgather = _numpy.allgather
allgather_async = _numpy.allgather_async
broadcast = _numpy.broadcast
broadcast_async = _numpy.broadcast_async
broadcast_ = _numpy.broadcast_
broadcast_async_ = _numpy.broadcast_async_
