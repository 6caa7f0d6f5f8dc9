"""The process that started the ranks of this host."""

from __future__ import annotations

import os
from pathlib import Path


def started_without(variable: str) -> int:
    """The id of the nearest ancestor of this process that has not ``variable`` in its environment.

    An engine sets ``variable`` for what it starts, so this is the engine, whatever scripts are in between. A process
    whose environment cannot be read is another user's, and counts as one without.
    """
    pid = os.getppid()
    while pid > 1 and has(pid, variable):
        pid = parent_of(pid)
    return pid


def has(pid: int, variable: str) -> bool:
    """Whether process ``pid`` was started with ``variable`` in its environment, as far as this user may know."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in environ.split(b"\0"))


def parent_of(pid: int) -> int:
    """The process that started ``pid``, or adopted it. Raises OSError if ``pid`` has ended."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])  # the name before it may hold anything
