"""The worker processes of one host: how they start, take signals, and are known to be gone.

A worker leads a session of its own, reads /dev/null or a pipe, and writes to two pipes. To a third pipe, which is read
after its end, it writes which rank ended its session (`hvdlite.launched_by.report`), and what it does to memory that
is read then too (`hvdlite.blackbox.format`). The process that uses this module is the subreaper of all of them, so a
process that left its worker's group still becomes its child in the end.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from hvdlite.blackbox import format as blackbox
from hvdlite.host.processes import Process, become_worker, ignores, processes, raise_limit_of_descriptors, signal_group
from hvdlite.net.untrusted import parse

from ...stream.fields import MOST_CHARACTERS
from ...stream.messages import Stderr, Stdout, blame
from .feed import Feed

_REPORT_BYTES: Final = 64 << 10
_STOPPED_S: Final = 2.5  # as in a session (HVDLITE_PEER_TIMEOUT): one that goes on sooner is not worth a word

_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_ADVICE: Final = {
    errno.ENOENT: "check that it exists on that host and is on PATH there",
    errno.EACCES: "check that it is executable on that host",
    errno.ENOEXEC: "its first line must name an interpreter, as #!/bin/sh does",
    errno.EMFILE: "raise the limit on open files on that host, see ulimit -n",
    errno.EAGAIN: "raise the limit on processes on that host, see ulimit -u",
}


@dataclass(slots=True)
class Worker:
    """One rank's process.

    ``pipes`` maps its open pipes to the messages that carry what it writes; ``report`` is the third pipe. ``blackbox``
    is the descriptor of its black box, if there is one. ``feed`` writes to its stdin, if that is a pipe.
    It has been stopped since ``stopped_at``, to be reported at ``report_stop_at``, and before for ``stopped_s``. Times
    are monotonic.
    """

    rank: int
    process: subprocess.Popen[bytes]
    pipes: dict[int, type[Stdout | Stderr]]
    report: int
    blackbox: int | None = None
    pidfd: int | None = None
    feed: Feed | None = None
    report_stop_at: float | None = None
    stopped_at: float | None = None
    stopped_s: float = 0.0

    def stop(self, now: float) -> None:
        """A signal stopped it."""
        self.stopped_at, self.report_stop_at = now, now + _STOPPED_S

    def go_on(self, now: float) -> None:
        """It goes on."""
        self.stopped_s, self.stopped_at, self.report_stop_at = self.stopped_for(now), None, None

    def stopped_for(self, now: float) -> float:
        """For how long it has been stopped by ``now``, in all."""
        return self.stopped_s + (0.0 if self.stopped_at is None else now - self.stopped_at)

    def read_report(self) -> tuple[int, str] | None:
        """The culprit and its fate, as the rank reported last, or None; closes the pipe. Call it once, after the end.

        The rank may have written anything.
        """
        with open(self.report, "rb", buffering=0) as pipe, suppress(ValueError):
            *_, last = (pipe.read(_REPORT_BYTES) or b"").splitlines()  # ValueError: it has reported nothing
            return cast(tuple[int, str], blame(parse(last)))
        return None

    def read_blackbox(self, ended_at: float) -> list[str]:
        """What the worker did before it ended, if that was a rank; lets go of the memory. Call it once, after the end.

        There is nothing to read if it ended by itself, or because it was asked to.
        """
        descriptor, self.blackbox = self.blackbox, None
        if descriptor is None:
            return []
        try:
            code = self.process.returncode or 0
            box = blackbox.read(descriptor) if code < 0 and -code not in _ASKING else None
            return blackbox.describe(box, ended_at) if box is not None else []
        finally:
            os.close(descriptor)


def explain(error: OSError | ValueError) -> str:
    """The reason why a worker could not be started, with advice if there is any."""
    if not isinstance(error, OSError):
        return str(error)[:MOST_CHARACTERS]
    what = f": {error.filename}"[: MOST_CHARACTERS // 2] if error.filename else ""
    advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    return f"{error.strerror}{what}{advice}"


class Workers:
    """All workers, even after their end, and the process groups that may still have members."""

    def __init__(self) -> None:
        self._by_pid: dict[int, Worker] = {}
        self._groups: set[int] = set()  # a group may outlive its worker
        self._descriptors = raise_limit_of_descriptors()  # a worker takes some of this process

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._by_pid.values())

    def find(self, pid: int) -> Worker | None:
        return self._by_pid.get(pid)

    def start(
        self, rank: int, command: list[str], environment: dict[str, str], cwd: str, stdin: int = subprocess.DEVNULL
    ) -> Worker:
        """Starts the worker of ``rank``. Raises OSError or ValueError if that fails."""
        ends: list[int] = []
        box = None
        try:
            ends += [*os.pipe(), *os.pipe(), *os.pipe()]
            stdout, written_stdout, stderr, written_stderr, report, written_report = ends
            for end in (stdout, stderr, report, written_report):
                os.set_blocking(end, False)
            given = {"HVDLITE_REPORT": written_report}
            with suppress(OSError):  # a system without such memory; the job does without
                box = given["HVDLITE_BLACKBOX"] = blackbox.make()
                ends.append(box)
            process = subprocess.Popen(
                command,
                env={**environment, **{name: f"{end}:{os.fstat(end).st_ino}" for name, end in given.items()}},
                pass_fds=tuple(given.values()),
                cwd=cwd,
                stdin=stdin,
                stdout=written_stdout,
                stderr=written_stderr,
                start_new_session=True,
                preexec_fn=partial(become_worker, os.getpid(), self._descriptors),
            )
        except (OSError, ValueError):
            for end in ends:
                os.close(end)
            raise
        for end in (written_stdout, written_stderr, written_report):
            os.close(end)
        worker = Worker(rank, process, {stdout: Stdout, stderr: Stderr}, report, box)
        self._by_pid[process.pid] = worker
        with suppress(OSError):  # a kernel without pidfd (before 5.3) still reports each death by SIGCHLD
            worker.pidfd = os.pidfd_open(process.pid)
        self._groups.add(process.pid)
        return worker

    def signal_everyone(self, signum: int) -> None:
        """Sends ``signum`` to the workers' groups, the rest of their sessions, and the orphans that left these.

        A process that left its worker's session and has a parent other than this process gets nothing.
        """
        for group in self._groups:
            signal_group(group, signum)
        for process in self._reachable():
            if process.group not in self._groups:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signum)

    def all_ignore(self, signum: int) -> bool:
        """True if all remaining processes ignore ``signum``, as background programs of a script ignore SIGINT."""
        return all(ignores(process.pid, signum) for process in self._reachable())

    def signal_ranks(self, signum: int) -> None:
        """Sends ``signum`` to the workers themselves, not to their children."""
        for worker in self:
            if worker.process.returncode is None:  # it may have ended, but its number is still its own
                os.kill(worker.process.pid, signum)

    def forget_empty_groups(self) -> None:
        """Forgets empty groups, whose numbers may soon be reused."""
        for group in tuple(self._groups):
            if self._by_pid[group].process.returncode is not None and not signal_group(group, 0):
                self._groups.discard(group)

    def are_all_gone(self) -> bool:
        """True if this process has no descendants left."""
        try:
            self.peek()
        except ChildProcessError:
            return True
        return False

    def _reachable(self) -> Iterator[Process]:
        me = os.getpid()
        return (each for each in processes() if each.session in self._groups or each.parent == me)

    def stopped(self, now: float) -> Iterator[Worker]:
        """The workers that a signal stopped a while ago and that have not gone on, each once for each time.

        ``now`` is the monotonic time. To be called after SIGCHLD and at `stop_due`.
        """
        with suppress(ChildProcessError):
            while news := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
                if worker := self._by_pid.get(news.si_pid):
                    worker.stop(now) if news.si_code == os.CLD_STOPPED else worker.go_on(now)
        for worker in self:
            if worker.report_stop_at is not None and now >= worker.report_stop_at:
                worker.report_stop_at = None
                if worker.process.returncode is None:
                    yield worker

    @property
    def stop_due(self) -> float | None:
        """The time of the next `stopped` on the monotonic clock, or None."""
        return min((worker.report_stop_at for worker in self if worker.report_stop_at is not None), default=None)

    def peek(self) -> os.waitid_result | None:
        """A child that has ended and was not reaped yet. Raises ChildProcessError if there is no child at all."""
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
