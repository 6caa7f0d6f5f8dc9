"""The agent: starts the workers of one host, relays what they write, and outlives none of them.

hvdrun runs one agent per host and speaks with it in frames over the agent's stdin and stdout. The environment of the
workers, with the job's key in it, comes in the first frame and so never shows in a command line.

A worker leads a session of its own, reads nothing (its stdin is /dev/null) and writes to two pipes. When it ends,
what is left in its pipes is sent before the news of its end. When hvdrun says so, or is dead, the agent sends SIGTERM
to every process that is left, SIGKILL after a grace time, and ends once it has no descendant. It is their subreaper, so
a process that left its worker's group is found and ended as well.

When hvdrun does not read, the agent stops reading too, and the workers wait in their writes as for any slow pipe.
The module and all it imports need nothing but the standard library, so that an agent is up within a few milliseconds.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from .frames import FrameError, FrameReader, Kind, pack_message, pack_output, unpack_message
from .processes import adopt_orphans, children, die_with_parent, signal_group
from .sink import Sink

_READ_BYTES: Final = 64 << 10
_PIPE_BYTES: Final = 1 << 20  # the most that Linux lets an unprivileged pipe hold
_OUTBOX_BYTES: Final = 4 << 20
_ABANDONED_GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL once hvdrun is dead; all must be over within 5 s
_FAREWELL_S: Final = 2.0  # for hvdrun to read the last output


@dataclass(slots=True)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    pipes: dict[int, Kind]  # those still open
    pidfd: int | None = None


class Agent:
    """One host's workers, from the first frame on stdin to the end of the last descendant."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._stdin = stdin
        self._outbox = Sink(stdout, "hvdrun", limit_bytes=sys.maxsize)
        self._frames = FrameReader()
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _Worker] = {}  # by pid, also after their end
        self._groups: set[int] = set()  # the workers' process groups; one may outlive its worker
        self._is_held = False  # the outbox is full and no worker's output is read
        self._is_ending = False
        self._kill_at: float | None = None
        os.set_blocking(stdin, False)
        self._watch(stdin, self._read_commands)

    def run(self) -> None:
        """Returns when hvdrun wants it, or is dead, and no descendant is left."""
        signals, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)
        self._watch(signals, lambda: None)
        while not (self._is_ending and not self._has_descendants()):
            ready = self._selector.select(self._seconds_to_kill())
            for key, _ in ready:
                if key.fd in self._selector.get_map():  # an earlier one of this turn may have closed it
                    key.data()
            with suppress(BlockingIOError):
                if set(os.read(signals, 512)) - {signal.SIGCHLD}:
                    self._end(_ABANDONED_GRACE_S)
            with suppress(ChildProcessError):
                self._reap()
            self._kill_if_due()
        self._say_farewell()

    # ---- what hvdrun says

    def _read_commands(self) -> None:
        data = os.read(self._stdin, _READ_BYTES)
        try:
            for kind, payload in self._frames.feed(data):
                message = unpack_message(payload)
                if kind is Kind.START:
                    self._start(message)
                elif kind is Kind.SIGNAL:
                    self._signal_all(message["signum"])
                    if message["signum"] == signal.SIGKILL:
                        self._end(0.0)
                elif kind is Kind.END:
                    self._end(message["grace_s"])
        except (FrameError, KeyError) as error:
            print(f"hvdlite agent: hvdrun sent what cannot be understood ({error}); ending", file=sys.stderr)
            data = b""
        if not data:
            self._selector.unregister(self._stdin)
            self._end(_ABANDONED_GRACE_S)

    def _start(self, message: Mapping[str, Any]) -> None:
        for worker in message["workers"]:
            environment = message["environment"] | worker["environment"]
            self._start_worker(worker["rank"], message["command"], environment, message["cwd"])

    def _start_worker(self, rank: int, command: list[str], environment: dict[str, str], cwd: str) -> None:
        ends: list[int] = []
        try:
            ends += [*os.pipe(), *os.pipe()]
            stdout, written_stdout, stderr, written_stderr = ends
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=written_stdout,
                stderr=written_stderr,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGKILL, os.getpid()),
            )
        except (OSError, ValueError) as error:
            for end in ends:
                os.close(end)
            self._send(pack_message(Kind.FAILED, rank=rank, reason=str(error)))
            return
        os.close(written_stdout)
        os.close(written_stderr)
        worker = self._workers[process.pid] = _Worker(rank, process, {stdout: Kind.STDOUT, stderr: Kind.STDERR})
        self._groups.add(process.pid)
        self._send(pack_message(Kind.STARTED, rank=rank, pid=process.pid))
        for pipe in worker.pipes:
            os.set_blocking(pipe, False)
            self._watch_pipe(worker, pipe)
        # epoll reports descriptors in the order in which they became ready: the order of the deaths. A kernel without
        # pidfd (before 5.3) still tells of each by SIGCHLD.
        with suppress(OSError):
            worker.pidfd = os.pidfd_open(process.pid)
            self._watch(worker.pidfd, partial(self._finish, worker))

    def _signal_all(self, signum: int) -> None:
        for group in self._groups:
            signal_group(group, signum)
        for pid in children():
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) not in self._groups:
                    os.kill(pid, signum)

    # ---- what the workers write

    def _read_output(self, worker: _Worker, pipe: int, limit: int = _READ_BYTES) -> None:
        """Sends what is in ``pipe``, up to ``limit`` bytes, and closes it at its end."""
        while limit > 0:
            try:
                data = os.read(pipe, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._unwatch(pipe)
                os.close(pipe)
                del worker.pipes[pipe]
                return
            self._send(pack_output(worker.pipes[pipe], worker.rank, data))
            limit -= len(data)

    def _watch_pipe(self, worker: _Worker, pipe: int) -> None:
        if not self._is_held:
            self._watch(pipe, partial(self._read_output, worker, pipe))

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        for worker in self._workers.values():
            for pipe in worker.pipes:
                if is_held:
                    self._unwatch(pipe)
                else:
                    self._watch_pipe(worker, pipe)

    # ---- how processes end

    def _finish(self, worker: _Worker) -> None:
        """Reaps ``worker`` and reports its last output, then its end."""
        code = worker.process.wait()
        ended = time.monotonic()
        if worker.pidfd is not None:
            self._unwatch(worker.pidfd)
            os.close(worker.pidfd)
            worker.pidfd = None
        for pipe in tuple(worker.pipes):  # a process that it left behind may hold them open and write on
            self._read_output(worker, pipe, limit=_PIPE_BYTES)
        self._forget_empty_groups()
        self._send(pack_message(Kind.EXITED, rank=worker.rank, pid=worker.process.pid, code=code, time=ended))

    def _reap(self) -> None:
        """Takes note of children that have ended: orphans that were adopted, and workers without a pidfd."""
        while ended := self._peek():
            worker = self._workers.get(ended.si_pid)
            if worker is None or worker.process.returncode is not None:
                os.waitpid(ended.si_pid, 0)
                self._forget_empty_groups()
            elif worker.pidfd is None:
                self._finish(worker)
            else:
                return  # the next turn finishes it, in its order

    def _forget_empty_groups(self) -> None:
        """Forgets groups of which nothing is left: their numbers may soon be those of other processes."""
        for group in tuple(self._groups):
            if self._workers[group].process.returncode is not None and not signal_group(group, 0):
                self._groups.discard(group)

    def _has_descendants(self) -> bool:
        try:
            self._peek()
        except ChildProcessError:
            return False
        return True

    def _peek(self) -> os.waitid_result | None:
        """A child that has ended and is still to be reaped. Raises ChildProcessError if there is no child at all."""
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def _end(self, grace_s: float) -> None:
        """Ends everything; a later and shorter ``grace_s`` wins."""
        kill_at = time.monotonic() + grace_s
        if not self._is_ending:
            self._is_ending, self._kill_at = True, kill_at
            self._signal_all(signal.SIGTERM)
        elif self._kill_at is not None:
            self._kill_at = min(self._kill_at, kill_at)

    def _seconds_to_kill(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _kill_if_due(self) -> None:
        if self._is_ending and not self._seconds_to_kill():
            # The death of a child makes its own children ours; SIGCHLD brings us here again for them.
            self._kill_at = None
            self._signal_all(signal.SIGKILL)

    # ---- frames to hvdrun

    def _send(self, frame: bytes) -> None:
        self._outbox.write(frame)
        self._balance()

    def _flush(self) -> None:
        self._outbox.flush()
        self._balance()

    def _balance(self) -> None:
        """Writes on when hvdrun is ready, and reads the workers' output only while the outbox has room."""
        if self._outbox.waiting_bytes:
            self._watch(self._outbox.fileno(), self._flush, selectors.EVENT_WRITE)
        else:
            self._unwatch(self._outbox.fileno())
        room = _OUTBOX_BYTES // 2 if self._is_held else _OUTBOX_BYTES
        if self._is_held != (self._outbox.waiting_bytes > room):
            self._hold(not self._is_held)

    def _say_farewell(self) -> None:
        for worker in self._workers.values():
            for pipe in tuple(worker.pipes):
                self._read_output(worker, pipe, limit=_PIPE_BYTES)
        self._outbox.drain(_FAREWELL_S)

    # ---- the selector

    def _watch(self, descriptor: int, react: Callable[[], None], events: int = selectors.EVENT_READ) -> None:
        if descriptor not in self._selector.get_map():
            self._selector.register(descriptor, events, react)

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)


def main() -> None:
    """Runs an agent on stdin and stdout; the process id of hvdrun is the only argument."""
    adopt_orphans()
    agent = Agent(sys.stdin.fileno(), sys.stdout.fileno())
    die_with_parent(signal.SIGTERM, int(sys.argv[1]))
    agent.run()


if __name__ == "__main__":
    main()
