"""The process that started the ranks of this host."""

from __future__ import annotations

import psutil


def started_without(variable: str) -> int:
    """The id of the nearest ancestor of this process that has not ``variable`` in its environment.

    An engine sets ``variable`` for what it starts, so this is the engine, whatever scripts are in between. A process
    whose environment cannot be read is another user's and counts as one without.
    """
    for ancestor in psutil.Process().parents():
        try:
            if variable not in ancestor.environ():
                return int(ancestor.pid)
        except (psutil.Error, OSError):
            return int(ancestor.pid)
    return 0
