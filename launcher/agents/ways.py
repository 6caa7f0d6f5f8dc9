"""Ways to an agent: what carries the two streams of bytes between hvdrun and the agent of a host.

A `Way` is open from the start. Once it is attached, it passes on what comes, and sends without ever waiting. The usual
one is a process whose stdin and stdout are the agent's: the agent itself, or ssh.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from hvdlite.errors import CannotStart
from hvdlite.host.processes import die_with_parent

from ..spawners import SshOptions, spawner_of
from ..stream.loop import Loop
from ..stream.outbox import Outbox
from ..where.hosts import Host

READ_BYTES: Final = 256 << 10
_MAX_SAID: Final = 50  # lines of stderr that are kept
_MAX_LINE_BYTES: Final = 64 << 10  # of stderr; what is longer is cut
_LAST_WRITE_S: Final = 0.5


class Receiver(NamedTuple):
    """What a `Way` calls: ``receive`` with what comes, and with no bytes at the end; ``show`` with lines for the user.

    ``hold`` is called when too much waits to be sent and when that is over, and ``signalled`` when somebody on the
    other host asks by a signal to end the job.
    """

    receive: Callable[[bytes], None]
    show: Callable[[str], None]
    hold: Callable[[bool], None]
    signalled: Callable[[int], None]


class Way(Protocol):
    """Carries bytes to and from one agent. Its text describes it, for messages."""

    @property
    def is_remote(self) -> bool:
        """True if the agent has a clock, an environment and a network of its own, and may vanish silently."""

    @property
    def is_scheduled(self) -> bool:
        """True if a scheduler runs the agent, and sends signals to all processes of the job."""

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that were not sent yet."""

    def attach(self, loop: Loop, receiver: Receiver) -> None:
        """Has turns of ``loop`` call ``receiver``."""

    def send(self, data: bytes) -> None:
        """Sends ``data`` now or when the other end is ready; drops it after `hang_up`."""

    def ignore(self) -> None:
        """Reads nothing more from the agent."""

    def conclude(self, code: int) -> None:
        """Sends the other host the exit code of the job, where somebody there waits for it. May be called twice."""

    def hang_up(self) -> None:
        """Ends the stream to the agent, which then exits with everything it started. May be called twice."""

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of what the way needs here. True if it has ended."""

    def destroy(self) -> None:
        """Kills the agent and everything below, or makes it end by itself, without waiting for either."""

    def kill(self) -> None:
        """Ends what still runs here."""

    def explain(self) -> str:
        """The reason why nothing comes any more. To be called after `wait`."""

    def close(self) -> None:
        """Frees what the way holds here."""


class ProcessWay:
    """Starts the agent of ``host`` behind a process here. Raises CannotStart if that cannot start."""

    def __init__(self, host: Host, options: SshOptions) -> None:
        self._host = host
        self._spawner = spawner_of(host)
        self._said: deque[str] = deque(maxlen=_MAX_SAID)
        self._said_tail = b""
        self._outbox: Outbox | None = None
        try:
            # A session of its own keeps the terminal's signals from the agent: hvdrun decides what they mean.
            process = subprocess.Popen(
                self._spawner.command(host, options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=None
                if self._spawner.is_scheduled
                else partial(die_with_parent, signal.SIGTERM, os.getpid()),
            )
        except OSError as error:
            what = f": {error.filename}" if error.filename else ""
            advice = "; raise the limit with ulimit -n" if error.errno == errno.EMFILE else ""
            raise CannotStart(host.name, f"{error.strerror}{what}{advice}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._stdin, self._stdout, self._stderr = process, process.stdin, process.stdout, process.stderr
        os.set_blocking(self._stderr.fileno(), False)

    def __str__(self) -> str:
        return f"process {self._process.pid} here"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_remote(self) -> bool:
        return self._spawner.is_remote

    @property
    def is_scheduled(self) -> bool:
        return self._spawner.is_scheduled

    @property
    def waiting_bytes(self) -> int:
        return self._outbox.waiting_bytes if self._outbox else 0

    def attach(self, loop: Loop, receiver: Receiver) -> None:
        self._loop, self._receiver = loop, receiver
        self._outbox = Outbox(loop, self._stdin.fileno(), f"the agent of {self._host.name}", receiver.hold)
        loop.watch(self._stdout.fileno(), self._read)
        loop.watch(self._stderr.fileno(), self._read_stderr)

    def send(self, data: bytes) -> None:
        if self._outbox and not self._stdin.closed:
            self._outbox.write(data)

    def hold(self, is_held: bool) -> None:
        """Pauses or resumes reading from the agent."""
        if is_held:
            self._loop.unwatch(self._stdout.fileno())
        else:
            self._loop.watch(self._stdout.fileno(), self._read)

    def ignore(self) -> None:
        self._loop.unwatch(self._stdout.fileno())

    def conclude(self, code: int) -> None:
        """Nobody waits for it."""

    def hang_up(self) -> None:
        if self._outbox and not self._stdin.closed:
            self._outbox.drain(_LAST_WRITE_S)
            self._outbox.close()
            self._stdin.close()

    def wait(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def destroy(self) -> None:
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def explain(self) -> str:
        self._read_stderr()
        return self._spawner.explain(self._host, tuple(self._said), self._process.returncode)

    def close(self) -> None:
        for stream in (self._stdout, self._stderr):
            self._loop.unwatch(stream.fileno())
            stream.close()

    def _read(self) -> None:
        self._receiver.receive(os.read(self._stdout.fileno(), READ_BYTES))

    def _read_stderr(self) -> None:
        try:
            data = os.read(self._stderr.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._said_tail = (self._said_tail + data).split(b"\n")
        if not data:
            self._loop.unwatch(self._stderr.fileno())
        if self._said_tail and (not data or len(self._said_tail) > _MAX_LINE_BYTES):
            lines, self._said_tail = [*lines, self._said_tail], b""
        for line in lines:
            text = line.decode(errors="backslashreplace").rstrip("\r")
            if not self._spawner.noise or self._spawner.noise not in text:
                self._said.append(text)
                self._receiver.show(text)
