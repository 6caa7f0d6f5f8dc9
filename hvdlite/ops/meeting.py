"""Collectives without a tensor: `barrier`, and `join` for ranks with uneven data."""

from __future__ import annotations

import threading
from contextlib import suppress

from hvdlite.errors import HvdError
from hvdlite.groups.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import BARRIER_NAME, JOIN_NAME, Kind
from hvdlite.ops.handles import run, synchronize
from hvdlite.ops.submit import NOTHING, entry_of
from hvdlite.session import group_of
from hvdlite.tensors.device import CPU, Device


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank has called it. Does not wait for collectives that are in flight."""
    run(barrier_entry(group_of(process_set)))


def barrier_entry(group: Group) -> Entry[None]:
    """Makes the entry of a `barrier`. All have one name, which ranks remember, and run one after the other."""
    group.admit(Kind.BARRIER)
    if (known := group.known.get(BARRIER_NAME)) is not None:
        return Entry(known.request, group)
    entry = entry_of(group, "", Kind.BARRIER, NOTHING)
    entry.rename(BARRIER_NAME, is_cacheable=True)
    return entry


def join(device: int = -1) -> int:
    """Declares that this rank has no more data, and waits until all ranks have joined. Returns the last rank to join.

    Until then this rank contributes zeros to every allreduce of the other ranks. An average still divides by the number
    of all ranks. Only allreduce with op Average or Sum can run meanwhile; any other collective fails on the ranks that
    call it. ``device`` is the index of the GPU for the zeros, if this rank has used no GPU.

    If a signal handler interrupts the call, this rank has still joined. The next call resumes waiting, or returns at
    once if all ranks have joined meanwhile.
    """
    group, caller = group_of(global_process_set), threading.get_ident()
    if device >= 0:
        planes = group.planes
        for kind in planes.keys() - {CPU.kind}:
            with suppress(ValueError):  # this rank has used another GPU, or cannot use this one
                planes.of_device(kind).choose(Device(kind, device))
    entry = group.interrupted_join
    is_again = entry is not None and entry.caller == caller
    if entry is None or not is_again:
        entry = join_entry(group)
    try:
        last: int = synchronize(entry) if is_again else run(entry)
    except HvdError:
        if is_again:  # otherwise it may be the join of another thread, which will call again
            group.interrupted_join = None
        raise
    except BaseException:
        if entry.caller or entry.is_done:  # otherwise the entry was withdrawn, and this rank has not joined
            entry.caller = caller
            group.interrupted_join = entry
        raise
    group.interrupted_join = None
    return last


def join_entry(group: Group) -> Entry[int]:
    """Makes the entry of a `join`."""
    entry = entry_of(group, "", Kind.JOIN, NOTHING)
    entry.rename(JOIN_NAME, is_cacheable=False)
    return entry
