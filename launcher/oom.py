"""How often the kernel has killed a process of this host because memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")


def count_kills() -> int:
    """A number that grows with every such kill that can be seen from here; only its growth means anything.

    The host's own count is in /proc/vmstat. A container may not see it grow, so the counts of this process's memory
    cgroup, of version 1 or 2, are added.
    """
    total = 0
    for path in (Path("/proc/vmstat"), *_cgroup_files()):
        with suppress(OSError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    total += int(count)
    return total


def _cgroup_files() -> Iterator[Path]:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield _CGROUPS / path.lstrip("/") / "memory.events"
            elif controllers == "memory":
                yield _CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
