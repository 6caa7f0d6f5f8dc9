"""hvdrun's end of the connection to one agent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from hvdlite.errors import CannotStart

from .frames import FrameReader, Kind, pack_message
from .hosts import is_local
from .processes import signal_group
from .spawners import command_for

_READ_BYTES: Final = 256 << 10


class AgentLink:
    """Starts the agent of ``host`` and speaks with it. Raises CannotStart if that fails."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.pids: dict[int, int] = {}  # of the ranks that run
        self._frames = FrameReader()
        try:
            # A session of its own keeps the terminal's signals from the agent: hvdrun decides what they mean.
            self._process = subprocess.Popen(
                command_for(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise CannotStart(host, f"{error.strerror}: {error.filename}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor that is readable when `receive` will not wait."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def receive(self) -> Iterator[tuple[Kind, bytes]] | None:
        """The frames that have come; None once the agent is gone. Raises FrameError for what is no frame."""
        data = os.read(self.fileno(), _READ_BYTES)
        return self._frames.feed(data) if data else None

    def send(self, kind: Kind, **fields: Any) -> None:
        """Sends a message. An agent that is gone does not get it, and `receive` tells."""
        assert self._process.stdin is not None
        frame = memoryview(pack_message(kind, **fields))
        with suppress(BrokenPipeError, ValueError):  # ValueError: closed
            while frame:
                frame = frame[self._process.stdin.write(frame) :]

    def destroy(self) -> None:
        """Kills the agent, and the workers' process groups as far as they are this machine's."""
        self._process.kill()
        if is_local(self.host):
            for pid in self.pids.values():
                signal_group(pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Waits for the end of the agent and frees what the link holds; kills the agent if it takes longer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.destroy()
            self._process.wait()
        self._process.stdout.close()
