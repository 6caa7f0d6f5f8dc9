"""Wakes a thread that sleeps in a poll."""

from __future__ import annotations

import os


class Wake:
    """An eventfd. `fd` polls readable after `set` until `clear`; any thread may call `set`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)
