"""Collectives without a tensor: the barrier, and the join of ranks with uneven data."""

from __future__ import annotations

from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import JOIN_NAME, Kind
from hvdlite.ops.handles import run, synchronize
from hvdlite.ops.submit import NOTHING, entry_of
from hvdlite.session import group_of


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns after every rank has called it. Does not wait for collectives that are in flight."""
    run(barrier_entry(process_set))


def barrier_entry(process_set: ProcessSet) -> Entry[None]:
    """Makes the entry of a `barrier`."""
    return entry_of(group_of(process_set), None, Kind.BARRIER, NOTHING)


def join(device: int = -1) -> int:
    """Declares that this rank has no more data and waits for all ranks to do so. Returns the last rank to join.

    Until then this rank takes part in every allreduce of the others with zeros. An average still divides by the number
    of all ranks. Only allreduce with op Average or Sum can run meanwhile; any other collective is an error on the ranks
    that call it. If the call is interrupted, this rank has still joined; called again, it resumes waiting.
    ``device`` is accepted for Horovod scripts and ignored.
    """
    group = group_of(global_process_set)
    entry = group.interrupted(JOIN_NAME)
    last: int = synchronize(entry) if entry is not None else run(join_entry())
    return last


def join_entry() -> Entry[int]:
    """Makes the entry of a `join`."""
    entry = entry_of(group_of(global_process_set), "", Kind.JOIN, NOTHING)
    entry.rename(JOIN_NAME, is_cacheable=False)
    return entry
