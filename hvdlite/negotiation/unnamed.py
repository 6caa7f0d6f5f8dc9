"""Automatic names for calls without a name. Each rank counts such calls.

A call is counted in the turn that takes its tensor, and no signal handler interrupts a turn. So a rank counts exactly
the calls that it has submitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

_serial: Final = itertools.count()


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
