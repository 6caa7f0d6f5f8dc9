"""The descriptor that a control link sleeps on: readable while a message from any peer waits.

The coordinator's thread sleeps on it and on the link's wake. A thread that waits for a result may replace it (a
driver): then the coordinator's thread watches the wake only, so that a message wakes one thread.
"""

from __future__ import annotations

import ctypes
import select
from collections.abc import Callable
from functools import partial
from typing import Final

from hvdlite import native
from hvdlite.control.page import Page
from hvdlite.net.wake import Wake

_WAKE: Final = 2  # the bit of the second descriptor in the result of hvd_spin_poll


class Inbox:
    """The descriptors of one link. `fileno` is readable while any of them is, so one inbox can contain another.

    A driver spins before it sleeps, for ``spin_ns``, the ``most_ns`` of a `native.Spin`, but less often while that does
    not help, and not again after a sleep that timed out: long waits cost nothing.
    """

    def __init__(self, spin_ns: int = 0) -> None:
        self.wake = Wake()
        self.spin = native.Spin(spin_ns)
        self._spin_at = ctypes.addressof(self.spin)
        self._spin_poll: Callable[..., int] = _poll if native.absence() else native.library().hvd_spin_poll
        self._sources = select.epoll()
        self._sources_fd = self._sources.fileno()
        self._poll = select.epoll()
        self._poll.register(self.wake.fd, select.EPOLLIN)
        self._poll.register(self._sources, select.EPOLLIN)

    def fileno(self) -> int:
        return self._sources.fileno()

    def add(self, fd: int) -> None:
        self._sources.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        self._sources.unregister(fd)

    def use(self, page: Page, awaits_decisions: bool = True) -> None:
        """Sleeps also until this rank's bell in ``page`` is rung, or there is a decision, for which a driver spins."""
        self._sources.register(page.bell, select.EPOLLIN | select.EPOLLET)  # by edges: the count is never read
        if awaits_decisions:
            self._spin_poll = partial(native.library().hvd_page_poll, page.handle)

    def await_events(self, fd: int, events: int) -> None:
        """Waits for ``events`` of ``fd``, which was added before, from now on."""
        self._sources.modify(fd, events)

    def ready(self) -> list[tuple[int, int]]:
        """The descriptors that are ready now, each with its events."""
        return self._sources.poll(0)

    def sleep(self, timeout_ms: int | None) -> None:
        """Sleeps until a descriptor is ready, `wake` is set, or the time is over. For the coordinator's thread."""
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        for fd, _ in self._poll.poll(timeout_s):
            if fd == self.wake.fd:
                self.wake.clear()

    def pause(self) -> None:
        """Makes `sleep` wait for `wake` only."""
        self._poll.modify(self._sources, 0)

    def resume(self) -> None:
        """Undoes `pause`."""
        self._poll.modify(self._sources, select.EPOLLIN)

    def sleep_as_driver(self, timeout_ms: int | None, wake: Wake) -> None:
        """Sleeps until a descriptor is ready, ``wake`` is set, or the time is over. For a driver."""
        timeout = -1 if timeout_ms is None else timeout_ms
        ready = self._spin_poll(self._spin_at, self._sources_fd, wake.fd, timeout)
        if ready < 0:
            raise OSError(ctypes.get_errno(), "waiting on a control link failed")
        if ready & _WAKE:
            wake.clear()

    def close(self) -> None:
        self._poll.close()
        self._sources.close()
        self.wake.close()


def _poll(spin_at: int, first: int, second: int, timeout_ms: int) -> int:
    """Stands in for hvd_spin_poll where there is no native library; does not spin."""
    ready = select.poll()
    ready.register(first, select.POLLIN)
    ready.register(second, select.POLLIN)
    came = [fd for fd, _ in ready.poll(timeout_ms)]
    return (first in came) | (second in came) << 1
