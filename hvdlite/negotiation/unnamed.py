"""Automatic names for calls that the user gave none: each rank counts such calls.

A call is counted in the turn that takes its tensor, which no signal handler interrupts. So a rank counts exactly the
calls that it has submitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

_serial: Final = itertools.count()  # this rank's alone


class Unnamed(str):
    """A placeholder for a tensor's name until its call is counted, equal only to itself. ``+`` adds a suffix.

    ``count`` returns the name of the call, once for all of its tensors.
    """

    __slots__ = ("_call", "_suffix")

    _call: list[Callable[[], str] | str]  # how its name comes to be, and then the name
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
        name = self._call[0]
        if not isinstance(name, str):
            name = self._call[0] = name()
        return name + self._suffix
