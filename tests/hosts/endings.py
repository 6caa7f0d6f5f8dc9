"""Waits until nothing of a job is left on hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

from tests.harness.hosts import Host, command_line
from tests.harness.patience import PATIENCE_S


def still_on(hosts: Iterable[Host], besides: str | None = None) -> list[str]:
    """Waits until nothing runs on ``hosts`` ``besides`` this. Returns what is left when patience is over."""
    deadline = time.monotonic() + PATIENCE_S
    while left := [process for host in hosts for process in host.processes(besides=besides)]:
        if time.monotonic() > deadline:
            return [f"{process.pid}: {line}" for process in left if (line := command_line(process))]
        psutil.wait_procs(left, timeout=0.05)
    return []
