"""A submitted tensor on its own rank: its request, and the addresses of its bytes.

An entry is also its caller's handle, so a tensor costs one object instead of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hvdlite.negotiation.handle import Handle, InFlightIn, R
from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Request
from hvdlite.tensors.streams import Launch, Streams, Synced

Allocate = Callable[[tuple[int, ...], tuple[int, ...]], tuple[Any, int]]
"""Makes an output whose first dimension is known only after the negotiation. Called with the shape and with the number
of rows from each rank. Returns the result for `synchronize`, and the address of its memory."""


NOBODY: Final = -1
"""The ``caller`` of an abandoned entry, whose result nobody will read."""


class Entry(Handle[R]):
    """A tensor in flight.

    - ``source``: the address of the ``nbytes`` bytes to read; ``target``: the address to write. They are equal for a
      collective in place.
    - ``allocate``: makes the output, if its shape is not known yet; else None.
    - ``owner``: an array or a `Storage` that keeps the memory at ``source``.
    - ``caller``: the thread whose blocking call submitted the entry, so that no other thread has the handle; `NOBODY`
      for an abandoned entry; else 0.
    - ``is_blank``: this rank has no value and contributes zeros. Once the entry is agreed: no rank has a value.
    - ``was_taken_up``: a turn has taken the entry.
    - ``submitted_at``, ``sent_at`` (to the root): exist only if times are kept (`InFlight`).

    Once the entry is done, ``owner`` and ``allocate`` are None, so that a kept handle keeps no input.
    """

    __slots__ = (
        "allocate",
        "caller",
        "is_blank",
        "nbytes",
        "owner",
        "request",
        "sent_at",
        "source",
        "submitted_at",
        "target",
        "was_taken_up",
    )

    submitted_at: float
    sent_at: float

    def __init__(
        self,
        request: Request,
        group: InFlightIn | None,
        source: int = 0,
        target: int = 0,
        nbytes: int = 0,
        owner: Any = None,
        output: Any = None,
        allocate: Allocate | None = None,
    ) -> None:
        self.request = request
        self.source = source
        self.target = target
        self.nbytes = nbytes
        self.owner = owner
        self.allocate = allocate
        self.name = request.name
        self.group = group
        self.output = output
        self.rows = ()
        self.error = None
        self.caller = 0
        self.is_blank = False
        self.was_taken_up = False
        self.is_done = False
        self.is_taken = False

    def rename(self, name: str, is_cacheable: bool = False) -> None:
        """Gives the tensor another name, before its request is sent to the root."""
        request = self.request
        if request.cacheable is is_cacheable:
            self.request = Request._make((name, *request[1:]))  # takes a third of the time of `_replace`
        else:
            self.request = request._replace(name=name, cacheable=is_cacheable)
        self.name = name

    def result(self, synced: Synced) -> Any:
        """Returns the ``output``. A caller that reads several outputs passes the same ``synced`` for all."""
        return self.output


class Converted(Entry[R]):
    """An entry whose result is ``convert`` of the output."""

    __slots__ = ("convert",)

    convert: Callable[[Any], Any]

    def __init__(self, entry: Entry[Any], convert: Callable[[Any], R]) -> None:
        super().__init__(
            entry.request, entry.group, entry.source, entry.target, entry.nbytes, entry.owner, None, entry.allocate
        )
        self.name = entry.name
        first = entry.convert if isinstance(entry, Converted) else None
        self.convert = convert if first is None else lambda output: convert(first(output))
        _held.__set__(self, _held.__get__(entry))  # the unconverted output, which is not filled yet

    def _result(self) -> Any:
        held = _held.__get__(self)
        return None if held is None else self.convert(held)

    def _hold(self, output: Any) -> None:
        _held.__set__(self, output)

    output: Any = property(_result, _hold)


class OnDevice(Entry[R]):
    """An entry of a device that works in ``streams``. It is done once its collective is issued to the device.

    The collective begins once the device has passed ``ready``, a mark that the plane made at the submit
    (`DevicePlane.record`). A thread that reads the result makes its current stream wait for the end of the collective,
    and does not block. ``launch`` is set when the entry is done; its error becomes the error of the entry.
    """

    __slots__ = ("convert", "launch", "ready", "streams")

    convert: Callable[[Any], Any] | None
    launch: Launch | None
    ready: Any
    streams: Streams

    def __init__(self, *args: Any) -> None:
        self.convert = self.launch = None
        super().__init__(*args)

    @property
    def has_result(self) -> bool:
        launch = self.launch
        return self.is_done and (launch is None or launch.is_done or launch.error is not None)

    def result(self, synced: Synced) -> Any:
        held, launch = _held.__get__(self), self.launch
        if held is not None and launch is not None and self.error is None:
            waiting = self.streams.current(), launch
            if waiting not in synced:
                launch.hold_back(waiting[0])
                synced.add(waiting)
            self.streams.use(held)
        return held if held is None or self.convert is None else self.convert(held)

    def _result(self) -> Any:
        return self.result(set())

    def _hold(self, output: Any) -> None:
        _held.__set__(self, output)

    def _failure(self) -> Any:
        own = _error.__get__(self)
        return own if own is not None or self.launch is None else self.launch.error

    def _fail(self, error: Any) -> None:
        _error.__set__(self, error)

    output: Any = property(_result, _hold)
    error: Any = property(_failure, _fail)


_held: Any = Handle.__dict__["output"]
_error: Any = Handle.__dict__["error"]


def converted(entry: Entry[Any], convert: Callable[[Any], R]) -> Entry[R]:
    """Returns an entry like ``entry`` whose result is ``convert`` of the output. ``entry`` must not be in flight."""
    if not isinstance(entry, OnDevice):
        return Converted(entry, convert)
    first = entry.convert
    entry.convert = convert if first is None else lambda output: convert(first(output))
    return entry


def memory_of(entry: Entry[Any]) -> tuple[Any, Any]:
    """Returns objects that keep the memory of the input and of the output."""
    return entry.owner, _held.__get__(entry)


def of_joined(request: Request) -> Entry[Any]:
    """Makes an entry for a tensor that this rank, which has joined, did not submit.

    It has no memory. If joined ranks contribute zeros, the plane supplies ``nbytes`` of them; else ``nbytes`` is 0.
    """
    return Entry(request, None, nbytes=request.nbytes if KINDS[request.kind].zeros_for_joined else 0)
