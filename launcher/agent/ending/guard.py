"""The parent of an agent, which cleans up after the agent if that is killed itself, for example by the OOM killer.

It does nothing else, so that little can go wrong with it, and it too is a subreaper: orphans of a dead agent become its
children. On SIGTERM it kills the agent and everything below at once. If the guard is killed, the agent gets SIGTERM and
ends its workers as usual.

A scheduler that ends a job sends SIGTERM to every process of it, ranks, agent and guard, or only to the process that it
started, which is the guard; it kills what is left later. There the guard passes the signal on to the agent.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

from hvdlite.host.processes import adopt_orphans, children, die_with_parent

SCHEDULED: Final = "scheduled"
"""The word after an agent's command that says that a scheduler, such as Slurm, sends signals to it and its ranks."""
_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGCHLD})
_OF_SCHEDULERS: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)


def fork_guarded(*, is_scheduled: bool = False) -> int | None:
    """Forks and returns in the child; this process becomes its guard and exits when nothing is left.

    The exit code of the guard is the agent's, or 128 and the number of the signal that killed the agent.

    If the agent ``is_scheduled``, signals of the scheduler do not end the guard. Then it returns a descriptor, which
    yields their numbers as bytes.
    """
    adopt_orphans()
    guard = os.getpid()
    signals = _SIGNALS | _OF_SCHEDULERS if is_scheduled else _SIGNALS
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    read, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    agent = os.fork()
    if agent:
        os.close(read)
        os._exit(_guard(agent, signals, written if is_scheduled else None))
    os.close(written)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    die_with_parent(signal.SIGTERM, guard)
    adopt_orphans()
    if is_scheduled:
        return read
    os.close(read)
    return None


def _guard(agent: int, signals: frozenset[signal.Signals], written: int | None) -> int:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # hvdrun is to see the end of the agent's stream, and the agent the end of hvdrun's
        os.dup2(nowhere, stream)
    code = 1
    while (signum := signal.sigwait(signals)) == signal.SIGCHLD or written is not None:
        if signum != signal.SIGCHLD and written is not None:
            with suppress(OSError):  # the agent is ending
                os.write(written, bytes([signum]))
        if (status := _reap().get(agent)) is not None:
            code = os.waitstatus_to_exitcode(status)
            break
    with suppress(ChildProcessError):
        while True:
            for pid in children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.wait()  # its own children are ours now
    return code if code >= 0 else 128 - code


def _reap() -> dict[int, int]:
    """The status of each child that has ended."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended
