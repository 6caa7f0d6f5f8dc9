"""Automatic names for calls without a name. Each rank counts such calls.

A number never recurs, so ranks could not remember the tensor of a call. They remember its description instead, under a
*signed* name. A rank may submit the bit of that name in a call that waits, while it has nothing else in flight. All its
calls before have been agreed on then, and so the same number of them on all ranks that submit the bit. Everything else
is requested under its number.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, Final

from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Request

Counter = tuple[Any, ...]
"""A kind of collective, followed by what else separates the counters: the ranks of a message, or a part of a call."""

_serial: Final = itertools.count()
_SIGNED: Final = "hvdlite.noname "  # a user's name does not begin so


def may_be_signed(request: Request) -> bool:
    """True if the call without a name that ``request`` describes, or another rank's of its number, may be signed."""
    row = KINDS[request.kind]
    return row.has_tensor and row.by_all and not (row.has_peer or request.group_length or request.splits)


def signed(request: Request) -> Request:
    """Returns ``request``, of a call without a name, under its signed name."""
    shape = "x".join(map(str, request.shape))
    scales = f"{float(request.prescale)!r} {float(request.postscale)!r}"
    name = f"{_SIGNED}{request.kind} {request.dtype} {shape} {int(request.op)} {scales} {request.root}"
    return request._replace(name=name, cacheable=True)


def is_signed(request: Request) -> bool:
    """True if `signed` has made ``request``."""
    return request.name.startswith(_SIGNED)


class Epoch:
    """The numbers of the calls after ``joins`` joins."""

    def __init__(self, joins: int) -> None:
        self.joins = joins
        self._numbers: dict[Counter, defaultdict[_Call, int]] = {}

    def name_of(self, call: _Call) -> str:
        """Counts ``call``, unless it was, and returns its name."""
        counter = call.counter
        numbers = self._numbers.get(counter)
        if numbers is None:
            numbers = self._numbers.setdefault(counter, defaultdict(itertools.count().__next__))
        number = numbers[call]  # one step, which no signal handler interrupts
        name = f"{counter[0]}.noname.{self.joins}.{number}" if self.joins else f"{counter[0]}.noname.{number}"
        call.name = call.purpose + name
        numbers.pop(call, None)
        return call.name


class Counters:
    """The counters of a group on this rank. ``epoch`` counts the calls of now."""

    def __init__(self) -> None:
        self.epoch = Epoch(0)

    def restart(self) -> None:
        """Begins at 0 again, because ranks made different numbers of calls before a join."""
        self.epoch = Epoch(self.epoch.joins + 1)


class _Call:
    __slots__ = ("counter", "counters", "name", "purpose")

    def __init__(self, counter: Counter, counters: Counters, purpose: str) -> None:
        self.counter = counter
        self.counters = counters
        self.purpose = purpose
        self.name = ""  # once it is counted


class Unnamed(str):
    """A placeholder for a tensor's name until its call is counted. It equals only itself. ``+`` adds a suffix.

    All tensors of the call share its number. The name begins with ``purpose``.
    """

    __slots__ = ("_call", "_suffix")

    _call: _Call
    _suffix: str

    def __new__(cls, counter: Counter, counters: Counters, purpose: str = "") -> Unnamed:
        self = str.__new__(cls, f"not named yet, {next(_serial)}")
        self._call = _Call(counter, counters, purpose)
        self._suffix = ""
        return self

    def __add__(self, suffix: str) -> Unnamed:
        other = str.__new__(Unnamed, str.__add__(self, suffix))
        other._call = self._call
        other._suffix = self._suffix + suffix
        return other

    @property
    def epoch(self) -> Epoch:
        """The one in which the call would be counted now."""
        return self._call.counters.epoch

    def counted(self, epoch: Epoch | None = None) -> str:
        """Returns the final name, and counts the call in ``epoch``, or now, if it has not been counted.

        To be called once the tensor was submitted, so that a rank counts exactly the calls that it has submitted. A
        signal handler may interrupt it; then it may be called again.
        """
        call = self._call
        return (call.name or (epoch or call.counters.epoch).name_of(call)) + self._suffix
