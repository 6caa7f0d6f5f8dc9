"""Runs a command while all cores are busy: ``python -m tests.harness.load [-n PROCESSES] COMMAND...``.

Two processes per core compute as long as the command runs. The kernel kills them when this process ends. The command
handles Ctrl-C, and this process ends when the command does.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1


@contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    """A context during which that many processes compute."""
    pids = [_start() for _ in range(processes)]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _start() -> int:
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the parent's end is theirs
        while os.getppid() == parent:  # it may have ended before the line above
            sum(range(1_000_000))
        os._exit(0)
    return pid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", type=int, default=2 * len(os.sched_getaffinity(0)), help="processes that compute")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the command would inherit
    with busy_cores(options.n):
        print(f"{options.n} processes keep {len(os.sched_getaffinity(0))} cores busy", flush=True)
        code = subprocess.run(options.command).returncode
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
