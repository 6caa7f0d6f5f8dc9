"""Process sets, as users see them: some ranks of the job that run collectives among themselves.

Every set has links, a data plane and threads of its own, so that sets never wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.session import current

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a process set, given itself or by its ranks, and returns it. All ranks of the job call it together.

    Raises ValueError on all ranks for ranks that are not in the job and for ranks that a registered set has already,
    and HorovodInternalError on all ranks if they do not pass the same set or a member cannot connect; the session
    stays usable.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    current().sets.add([process_set])
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a registered process set. All ranks of the job call it together.

    Collectives in flight in the set fail. Returns False, and does nothing, for the global process set and for a set
    that is not registered. Raises HorovodInternalError on all ranks if they do not pass the same set.
    """
    return current().sets.remove(process_set)
