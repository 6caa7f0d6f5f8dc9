"""Who takes part with this rank."""

from __future__ import annotations

from hvdlite.members.process_set import ProcessSet
from hvdlite.ops import group_of


def has_peers(process_set: ProcessSet) -> bool:
    """Whether this rank is in ``process_set`` and not alone there.

    Raises HorovodInternalError before ``init`` and after ``shutdown``, and ValueError for a set that is not registered,
    so that nobody trains alone without noticing.
    """
    return process_set.included() is not False and group_of(process_set).size > 1
