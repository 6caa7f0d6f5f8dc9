"""Checks that this process may open enough descriptors.

ZeroMQ silently retries for ever when the system refuses a descriptor to one of its connections. So as many descriptors
as will be needed are opened and closed again beforehand.
"""

from __future__ import annotations

import os

from hvdlite.errors import HorovodInternalError

_LOCAL = 18  # the segment's, the arena's, the engine's and the listener's
_ACROSS = 24  # ZeroMQ's and the rings', and those of the rendezvous, which ends later
_PER_NEIGHBOUR = 2  # of the same host, at its leader


def check_descriptors(local_size: int, hosts: int) -> None:
    """Raises HorovodInternalError if this process cannot open what a rank among so many ranks and hosts may need."""
    needed = _LOCAL + _PER_NEIGHBOUR * local_size + (_ACROSS + hosts if hosts > 1 else 0)
    tried: list[int] = []
    try:
        for _ in range(needed):
            tried.append(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError as error:
        raise HorovodInternalError(
            f"this process can open only {len(tried)} more files, and its connections need up to {needed}: "
            f"{error.strerror}. Raise the limit: ulimit -n 65536, or nofile in /etc/security/limits.conf, on each host."
        ) from None
    finally:
        for descriptor in tried:
            os.close(descriptor)
