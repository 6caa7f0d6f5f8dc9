"""The host id: ranks with equal ids can share memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from hvdlite.errors import HorovodInternalError


def kernel_host_id() -> str:
    """Equal for two processes exactly if they run on one kernel and in one network namespace.

    The namespace matters because ranks send memory through abstract Unix sockets, which belong to a network namespace.
    Raises HorovodInternalError if it cannot be determined.
    """
    return f"{_boot_id()}-{network_namespace()}"


def clock_id() -> str:
    """Equal for two processes if they have one monotonic clock."""
    try:
        namespace = os.stat("/proc/self/ns/time").st_ino
    except OSError:  # a kernel without them
        namespace = 0
    return f"{_boot_id()}-{namespace}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def network_namespace(pid: int | None = None) -> int:
    """The number of the network namespace of a process, by default this one. Raises as `kernel_host_id`."""
    try:
        return os.stat(f"/proc/{pid or 'self'}/ns/net").st_ino
    except OSError as error:
        raise HorovodInternalError(
            "cannot tell which ranks share a host: this process sees no /proc "
            f"({error.strerror}); mount it: mount -t proc proc /proc"
        ) from None
