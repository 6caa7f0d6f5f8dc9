"""Ways to start the agent of a host, one file and one row of the table each.

A spawner turns a host into a command whose stdin and stdout are the agent's, and explains why one failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from ..hosts import Host, is_local
from . import local, ssh
from .ssh import SshOptions

__all__ = ["Spawner", "SshOptions", "spawner_of", "ways_to"]


@dataclass(frozen=True, slots=True)
class Spawner:
    """One way to start an agent. A remote host has its own clock, environment and network, and may vanish silently."""

    serves: Callable[[Host], bool]
    command: Callable[[Host, SshOptions], list[str]]
    explain: Callable[[Host, Sequence[str], int], str]
    is_remote: bool


_SPAWNERS: Final = (
    Spawner(lambda host: is_local(host.name), local.agent_command, local.explain, is_remote=False),
    Spawner(lambda host: True, ssh.agent_command, ssh.explain, is_remote=True),
)


def spawner_of(host: Host) -> Spawner:
    """The first row that serves ``host``."""
    return next(spawner for spawner in _SPAWNERS if spawner.serves(host))


def ways_to(hosts: Sequence[Host], used: Collection[str], options: SshOptions) -> list[list[str]]:
    """The commands that reach those of ``hosts`` that are ``used`` and not this machine."""
    remote = {host.name: host for host in hosts if host.name in used and spawner_of(host).is_remote}
    return [spawner_of(host).command(host, options) for host in remote.values()]
