"""Waits until nothing of a job is left on hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

from tests.harness.hosts import Host, command_line


def gone_within(seconds: float, hosts: Iterable[Host], besides: str | None = None) -> list[str]:
    """What still runs on ``hosts`` ``seconds`` from now, ``besides`` this; returns as soon as nothing does."""
    deadline = time.monotonic() + seconds
    while left := [process for host in hosts for process in host.processes(besides=besides)]:
        if time.monotonic() > deadline:
            return [f"{process.pid}: {line}" for process in left if (line := command_line(process))]
        psutil.wait_procs(left, timeout=0.05)
    return []
