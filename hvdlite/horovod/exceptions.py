"""``horovod.common.exceptions``: the exceptions that scripts catch."""

from __future__ import annotations

from hvdlite.errors import HorovodInternalError

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job changed; with ``skip_sync`` the state needs no new broadcast.

    It exists for ``except`` clauses: this version has no elastic jobs and never raises it.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Never raised: hvdlite builds no extension for a version of a framework."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {installed_version} is installed, and the extension was built for {version}")
        self.name: str = name
        self.version = version
        self.installed_version = installed_version
