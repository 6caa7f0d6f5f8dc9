"""What a control link sleeps on: one descriptor that is readable while something has come from any peer.

The coordinator's thread sleeps on it and on the link's wake. A thread that waits for a result may take its place: then
the coordinator's thread looks at the wake only, so that what comes wakes one thread and not two.
"""

from __future__ import annotations

import select
import time

from hvdlite.runtime.wake import Wake


class Inbox:
    """Descriptors of one link. What is added counts as something that came for as long as it is readable.

    `fileno` is readable then, so the inbox of one link can be added to that of another. A driver spins for ``spin_us``
    before it sleeps, but not again after it has slept in vain: who waits for long costs nothing.
    """

    def __init__(self, spin_us: float = 0) -> None:
        self.wake = Wake()
        self._spin_ns = round(max(spin_us, 0) * 1000)
        self._may_spin = True
        self._sources = select.epoll()
        self._poll = select.epoll()
        self._poll.register(self.wake.fd, select.EPOLLIN)
        self._poll.register(self._sources, select.EPOLLIN)
        self._poll_of_driver = select.poll()
        self._poll_of_driver.register(self._sources, select.POLLIN)

    def fileno(self) -> int:
        return self._sources.fileno()

    def add(self, fd: int) -> None:
        self._sources.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        self._sources.unregister(fd)

    def watch(self, fd: int, events: int) -> None:
        """From now on, ``events`` of ``fd``, which was added, are what counts."""
        self._sources.modify(fd, events)

    def ready(self) -> list[tuple[int, int]]:
        """Descriptors of which something has come now, each with its events."""
        return self._sources.poll(0)

    def sleep(self, timeout_ms: int | None) -> None:
        """Returns when something has come, `wake` is set, or the time is over. For the coordinator's thread."""
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if any(fd == self.wake.fd for fd, _ in self._poll.poll(timeout_s)):
            self.wake.clear()

    def pause(self) -> None:
        """From now on `sleep` looks at `wake` only."""
        self._poll.modify(self._sources, 0)

    def resume(self) -> None:
        """Takes back `pause`."""
        self._poll.modify(self._sources, select.EPOLLIN)

    def sleep_as_driver(self, timeout_ms: int | None, wake: Wake) -> None:
        """Returns when something has come, ``wake`` is set, or the time is over."""
        poll = self._poll_of_driver
        poll.register(wake.fd, select.POLLIN)  # the same each time
        ready: list[tuple[int, int]] = []
        if self._spin_ns and self._may_spin:
            until = time.monotonic_ns() + self._spin_ns
            while not ready and time.monotonic_ns() < until:
                ready = poll.poll(0)
        ready = ready or poll.poll(timeout_ms)
        self._may_spin = bool(ready)
        if any(fd == wake.fd for fd, _ in ready):
            wake.clear()

    def close(self) -> None:
        self._poll.close()
        self._sources.close()
        self.wake.close()
