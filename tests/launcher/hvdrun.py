"""Starts the real hvdrun for tests, and waits for what it and its workers do, never longer than a deadline."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.harness.patience import PATIENCE_S

COMMAND = (sys.executable, "-m", "hvdlite.launcher.cli")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs hvdrun to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def python(program: str) -> tuple[str, ...]:
    """The command of a worker that runs ``program`` and starts fast."""
    return (sys.executable, "-S", "-c", program)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """hvdrun while it runs; killed at the end if a test failed to end it."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_until(descriptor: int, is_enough: Callable[[bytes], bool]) -> bytes:
    """Reads from ``descriptor`` until it ``is_enough``. Fails at the deadline or at the end of the stream."""
    deadline, found = time.monotonic() + PATIENCE_S, b""
    while not is_enough(found):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        piece = b""
        if ready:
            with suppress(OSError):  # a terminal whose other end is closed
                piece = os.read(descriptor, 1 << 16)
        if not piece:
            raise AssertionError(f"nothing more came after {found!r}")
        found += piece
    return found


def pids_in(folder: Path) -> list[int]:
    """The process ids that workers wrote into files ``pid.*`` of ``folder``."""
    return sorted(int(path.read_text()) for path in folder.glob("pid.*"))


def still_alive(pids: list[int], within_s: float) -> list[int]:
    """Those of ``pids`` that still run ``within_s`` seconds from now; returns as soon as none does."""
    processes = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    deadline = time.monotonic() + within_s
    while alive := [process.pid for process in processes if _runs(process)]:
        if time.monotonic() > deadline:
            return alive
        psutil.wait_procs(processes, timeout=0.05)
    return []


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
