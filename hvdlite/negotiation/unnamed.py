"""Names of calls that have none from the user: ranks tell these calls apart by counting them.

A call is counted in the turn that takes it up, which no signal handler interrupts. So it is counted on a rank if, and
only if, it was submitted there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

_serial: Final = itertools.count()


class Unnamed(str):
    """Stands for the name of a tensor until its call is counted, and is like no other. ``+`` adds to that name.

    ``count`` gives the name of the call, once for all of its tensors.
    """

    __slots__ = ("_call", "_suffix")

    _call: _Call
    _suffix: str

    def __new__(cls, count: Callable[[], str]) -> Unnamed:
        return cls._of(_Call(count), "")

    @classmethod
    def _of(cls, call: _Call, suffix: str) -> Unnamed:
        self = super().__new__(cls, f"not named yet, {call.serial}{suffix}")
        self._call = call
        self._suffix = suffix
        return self

    def __add__(self, suffix: str) -> Unnamed:
        return self._of(self._call, self._suffix + suffix)

    def counted(self) -> str:
        """The name."""
        call = self._call
        if not call.name:
            call.name = call.count()
        return call.name + self._suffix


class _Call:
    __slots__ = ("count", "name", "serial")

    def __init__(self, count: Callable[[], str]) -> None:
        self.count = count
        self.name = ""
        self.serial = next(_serial)  # this rank's alone
