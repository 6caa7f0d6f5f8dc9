"""The resources of this host that a job may run short of, for ``hvdrun doctor``.

Sizes are in bytes. Where the kernel provides nothing, a number is 0 and a list empty; a limit that is not set is None.
"""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from typing import Any, Final

from hvdlite.host import cgroups, proc

_GPU_QUERY: Final = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_GPU_DEADLINE_S: Final = 10.0


def describe_machine() -> dict[str, Any]:
    """The facts, ready for JSON."""
    try:
        memory = proc.memory()
    except OSError:
        memory = proc.Memory(0, 0, 0)
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "kernel": f"{os.uname().sysname} {os.uname().release}",
        "cores": len(os.sched_getaffinity(0)),
        "cores_limit": cgroups.cores_limit(),
        "load": round(os.getloadavg()[0], 2),
        "memory": memory.total,
        "free_memory": memory.available,
        "memory_limit": cgroups.memory_limit(),
        "used_swap": memory.used_swap,
        "shm": shm.f_frsize * shm.f_blocks if shm else 0,
        "files": _limit(files),
        "locked_memory": _limit(locked),
        "infiniband": _listed(Path("/sys/class/infiniband")),
        "gpus": _gpus(),
    }


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _listed(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _gpus() -> list[dict[str, str]]:
    """Name, memory and driver of each GPU; empty if nvidia-smi is missing or does not answer."""
    try:
        output = subprocess.run(_GPU_QUERY, capture_output=True, text=True, timeout=_GPU_DEADLINE_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = ([word.strip() for word in line.split(",")] for line in output.splitlines())
    return [{"name": row[0], "memory_mib": row[1], "driver": row[2]} for row in rows if len(row) == 3]
