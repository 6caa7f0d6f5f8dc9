"""The group with which a rank trains."""

from __future__ import annotations

from hvdlite.ops import Group, ProcessSet, global_process_set, group_of


def group_with_peers(process_set: ProcessSet) -> Group | None:
    """Returns the group of ``process_set``; None if this rank is not in it, or alone there.

    Raises HorovodInternalError before ``init`` and after ``shutdown``, and ValueError for a set that is not registered,
    so that nobody trains alone without noticing.
    """
    if process_set is not global_process_set and process_set.included() is False:
        return None
    group = group_of(process_set)
    return group if group.size > 1 else None
