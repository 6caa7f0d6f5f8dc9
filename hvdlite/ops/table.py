"""The table of the collectives over tensors: a row for each.

A collective is a row here and one method, its *draft*: ``_allgather`` in `hvdlite.ops.transfers` for the row
``allgather``. A draft takes a `Group`, checks the arguments, and returns the handle of what is not submitted yet.
``make forms`` writes the blocking and asynchronous forms of each draft, and those in place, into
`hvdlite.ops.collectives`, and their public names into the ``forms.py`` of each front end.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple


class Result(Enum):
    """How a rank knows the shape of its result."""

    ALIKE = auto()  # it is that of the tensor
    OWN_ROWS = auto()  # the rows of the tensor are divided evenly
    ALIKE_ON_ROOT = auto()  # elsewhere it has no rows
    NOTHING = auto()  # there is no result
    AGREED = auto()  # the ranks learn it from each other, when the collective runs


class Collective(NamedTuple):
    """One row: the name of the blocking form, and the result.

    ``is_in_place`` if there are forms that write into their tensors, too. ``is_public`` if the front ends of tensors
    that are written in memory have its forms.
    """

    name: str
    result: Result
    is_in_place: bool = False
    is_public: bool = True

    @property
    def is_grouped(self) -> bool:
        """True if it takes several tensors at once."""
        return self.name.startswith("grouped_")

    @property
    def draft(self) -> str:
        """The name of its draft."""
        return "_" + self.name

    def forms(self) -> Iterator[Form]:
        """Its forms."""
        for is_in_place in (False, True)[: 1 + self.is_in_place]:
            for is_blocking in (True, False):
                yield Form(self, is_blocking, is_in_place)


class Form(NamedTuple):
    """One form of a collective."""

    collective: Collective
    is_blocking: bool
    is_in_place: bool

    @property
    def name(self) -> str:
        """Its name: ``allreduce``, ``allreduce_async``, ``allreduce_`` or ``allreduce_async_``."""
        return self.collective.name + "_async" * (not self.is_blocking) + "_" * self.is_in_place


COLLECTIVES: Final = (
    Collective("allreduce", Result.ALIKE, is_in_place=True),
    Collective("grouped_allreduce", Result.ALIKE, is_in_place=True),
    Collective("reducescatter", Result.OWN_ROWS),
    Collective("grouped_reducescatter", Result.OWN_ROWS),
    Collective("reduce", Result.ALIKE_ON_ROOT),
    Collective("allgather", Result.AGREED),
    Collective("grouped_allgather", Result.AGREED),
    Collective("broadcast", Result.ALIKE, is_in_place=True),
    Collective("grouped_broadcast", Result.ALIKE, is_public=False),
    Collective("alltoall", Result.AGREED),
    Collective("gather", Result.AGREED),
    Collective("scatter", Result.AGREED),
    Collective("send", Result.NOTHING),
    Collective("recv", Result.ALIKE, is_in_place=True),
)

FORMS: Final = {form.name: form for collective in COLLECTIVES for form in collective.forms()}
"""All forms by name."""
