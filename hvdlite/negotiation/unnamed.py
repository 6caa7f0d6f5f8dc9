"""Automatic names for calls without a name. Each rank counts such calls.

A call is counted in the turn that takes its tensor, and no signal handler interrupts a turn. So a rank counts exactly
the calls that it has submitted.

A number never recurs, so ranks could not remember the tensor of a call. They remember its description instead, under a
*signed* name. A rank may submit the bit of that name while none of its other tensors is waiting to be agreed on. All
calls before have been agreed on then, on this rank, and so the same number of them on all ranks that submit the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Request
from hvdlite.tensors.device import CPU

_serial: Final = itertools.count()
_SIGNED: Final = "hvdlite.noname "  # a user's name does not begin so


def signed(request: Request) -> Request | None:
    """Returns ``request``, of a call without a name, under its signed name. None if ranks must not remember it."""
    kind, row = request.kind, KINDS[request.kind]
    if (
        not (row.has_tensor and row.by_all)
        or row.has_peer
        or request.group_length
        or request.splits
        or request.device.kind != CPU.kind
    ):
        return None
    shape = "x".join(map(str, request.shape))
    scales = f"{float(request.prescale)!r} {float(request.postscale)!r}"
    name = f"{_SIGNED}{kind} {request.dtype} {shape} {int(request.op)} {scales} {request.root}"
    return request._replace(name=name, cacheable=True)


def is_signed(request: Request) -> bool:
    """True if `signed` has made ``request``."""
    return request.name.startswith(_SIGNED)


def shown_name(request: Request) -> str:
    """Returns the name of ``request`` for users."""
    return f"{request.kind}.noname" if is_signed(request) else request.name


class Unnamed(str):
    """A placeholder for a tensor's name until its call is counted. It equals only itself. ``+`` adds a suffix.

    ``count`` counts the call and returns its name. All tensors of the call share the result.
    """

    __slots__ = ("_call", "_suffix")

    _call: list[Callable[[], str] | str]  # one item: ``count``, and then its result
    _suffix: str

    def __new__(cls, count: Callable[[], str]) -> Unnamed:
        self = str.__new__(cls, f"not named yet, {next(_serial)}")
        self._call = [count]
        self._suffix = ""
        return self

    def __add__(self, suffix: str) -> Unnamed:
        other = str.__new__(Unnamed, str.__add__(self, suffix))
        other._call = self._call
        other._suffix = self._suffix + suffix
        return other

    def counted(self) -> str:
        """Returns the final name, and counts the call if no other tensor of the call has."""
        name = self._call[0]
        if not isinstance(name, str):
            name = self._call[0] = name()
        return name + self._suffix
