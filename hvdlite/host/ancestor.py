"""Facts from ``/proc`` about the processes of a rank: their environment, and which process started them."""

from __future__ import annotations

import os
from pathlib import Path

from hvdlite.host.proc import stat_of


def started_without(variable: str, pid: int = 0, value: str | None = None) -> int:
    """The id of the nearest ancestor of ``pid``, by default of this process, without ``variable`` in its environment.

    An engine sets ``variable`` for the processes that it starts, so this is the engine, whatever scripts are in
    between. If ``value`` is given, an ancestor with another value counts too: an engine that is a rank of an outer job.
    So does a process of another user, whose environment cannot be read. Raises OSError if ``pid`` has ended.
    """
    pid = stat_of(pid).parent if pid else os.getppid()
    while pid > 1 and (found := value_at(pid, variable)) is not None and value in (None, found):
        pid = stat_of(pid).parent
    return pid


def value_at(pid: int, variable: str) -> str | None:
    """The value of ``variable`` that process ``pid`` was started with; None if there is none, or not to read."""
    try:
        return environ_of(pid).get(variable)
    except OSError:
        return None


def environ_of(pid: int) -> dict[str, str]:
    """The environment that process ``pid`` was started with. Raises OSError if it has ended or is another user's."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, sign, value in pairs if sign}
