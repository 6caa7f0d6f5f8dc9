"""What Linux shows of any process, whoever its user is."""

from __future__ import annotations

from typing import NamedTuple


class Stat(NamedTuple):
    """``state`` is ``T`` for a process that a signal stopped, and ``t`` for one that a debugger holds."""

    state: str
    parent: int


def stat_of(pid: int) -> Stat:
    """The state of ``pid``, and the process that started or adopted it. Raises OSError if ``pid`` has ended."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split(None, 2)  # the name before them may hold anything
    if len(fields) < 2:
        raise ProcessLookupError(f"process {pid} has ended")
    return Stat(fields[0].decode(), int(fields[1]))
