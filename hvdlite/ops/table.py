"""The table of the collectives over tensors: one row for each.

A collective is a row here and one method, its *draft*: the row ``allgather`` has the draft ``_allgather`` in
`hvdlite.ops.transfers`. A draft takes a `Group`, checks the arguments, and returns a handle that is not submitted yet.
``make forms`` writes the blocking, asynchronous and in-place *forms* of each draft into `hvdlite.ops.collectives`, and
their public names into the ``forms.py`` of each front end.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple


class Result(Enum):
    """How a rank learns the shape of its result."""

    ALIKE = auto()  # it is the shape of the tensor
    OWN_ROWS = auto()  # the rows of the tensor are divided evenly
    ALIKE_ON_ROOT = auto()  # it is the shape of the tensor on the root, and has no rows on other ranks
    NOTHING = auto()  # the collective has no result
    AGREED = auto()  # the negotiation determines it


class Collective(NamedTuple):
    """One row of the table.

    ``name`` is the name of the blocking form. With ``is_in_place``, there are also forms that write into their tensors,
    and the draft takes ``is_in_place`` after the group. With ``is_public``, front ends whose tensors are written in
    memory export the forms.
    """

    name: str
    result: Result
    is_in_place: bool = False
    is_public: bool = True

    @property
    def is_grouped(self) -> bool:
        """True if the collective takes a list of tensors."""
        return self.name.startswith("grouped_")

    @property
    def draft(self) -> str:
        """The name of the draft."""
        return "_" + self.name

    def forms(self) -> Iterator[Form]:
        """Yields all forms."""
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
        """The name of the form: ``allreduce``, ``allreduce_async``, ``allreduce_`` or ``allreduce_async_``."""
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
