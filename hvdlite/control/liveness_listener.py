"""A TCP port that a rank holds open while its process lives, so that others can ask the kernel whether it does.

While the process runs, a connection is accepted and closed at once, unread; while it is stopped, only the kernel
accepts; when it has ended, the kernel refuses.
"""

from __future__ import annotations

from hvdlite.net.listening import endpoint, listen

_BURST = 64  # connections dropped in one go


class LivenessListener:
    """Listens on ``address`` until it is closed. Others dial ``endpoint``."""

    def __init__(self, address: str, ports: range | None) -> None:
        self._listener = listen(address, ports)
        self.endpoint = endpoint(address, self._listener.name()[1])

    def fileno(self) -> int:
        return self._listener.fileno()

    def drop_callers(self) -> None:
        """Disconnects callers. Due when the listener is readable."""
        for _ in range(_BURST):
            if (caller := self._listener.accept()) is None:
                break
            caller.close()

    def close(self) -> None:
        self._listener.close()
