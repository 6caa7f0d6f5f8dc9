"""Limits of this process's control groups, of version 1 or 2, and the number of kills by the OOM killer.

Limits of all parent groups apply too, so the lowest counts. A container may see its own group as the top, or a path
that exists only on the host: then only the top can be read. None stands for no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_TOP: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_NO_LIMIT: Final = 1 << 60  # what version 1 shows for no limit is above


def cores_limit(top: Path = _TOP, own: Path = _OWN) -> float | None:
    """The processor time that this process may use, in cores."""
    limits = []
    for group in groups("cpu", top, _text(own)):
        words = [*_words(group / "cpu.max"), *_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        with suppress(ValueError, IndexError):
            if int(words[0]) > 0:
                limits.append(round(int(words[0]) / int(words[1]), 2))
    return min(limits, default=None)


def memory_limit(top: Path = _TOP, own: Path = _OWN) -> int | None:
    """The memory that this process may use, in bytes."""
    limits = []
    for group in groups("memory", top, _text(own)):
        for word in (*_words(group / "memory.max"), *_words(group / "memory.limit_in_bytes")):
            with suppress(ValueError):
                limits.append(int(word))
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def oom_kills(top: Path = _TOP, own: Path = _OWN, vmstat: Path = Path("/proc/vmstat")) -> int:
    """A number that grows with every process that the OOM killer kills; only its growth means anything.

    The host's own count is in ``vmstat``. A container may not see it grow, so the counts of its groups are added.
    """
    names = ("memory.events", "memory.oom_control")
    paths = [group / name for group in groups("memory", top, _text(own)) for name in names]
    total = 0
    for path in (vmstat, *paths):
        words = _words(path)
        if "oom_kill" in words[:-1]:
            total += int(words[words.index("oom_kill") + 1])
    return total


def groups(controller: str, top: Path, named: str) -> Iterator[Path]:
    """The folders of the groups that a process is in, from its own up to the top.

    ``named`` is what its ``/proc/PID/cgroup`` contains.
    """
    for line in named.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = top / controller if controllers else top
        group = root / path.lstrip("/")
        yield from (group, *(above for above in group.parents if above.is_relative_to(root)))


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()
