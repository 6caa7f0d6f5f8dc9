"""Ways to start the agent of a host, one file and one row of `_SPAWNERS` each, of which the first that serves counts.

A spawner turns a host into a command whose stdin and stdout are the agent's, and explains why one failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..where.hosts import Host, is_local
from ..where.slurm import SLURM
from . import srun, ssh
from .boot import boot_here
from .ssh import SshOptions

__all__ = ["Spawner", "SshOptions", "spawner_of", "ways_to"]


@dataclass(frozen=True, slots=True)
class Spawner:
    """One way to start an agent. A remote host has its own clock, environment and network, and may vanish silently.

    If it ``is_scheduled``, a scheduler runs the agent, and sends signals to all processes of the job. The command must
    not be killed then when hvdrun dies: the agent sees the end of its stream and ends what it started in its own time,
    which the scheduler would cut short. Lines of stderr with ``noise`` mean nothing.
    """

    serves: Callable[[Host], bool]
    command: Callable[[Host, SshOptions], list[str]]
    explain: Callable[[Host, Sequence[str], int], str]
    is_remote: bool
    is_scheduled: bool = False
    noise: str = ""


_LOCAL: Final = Spawner(  # a child of hvdrun
    lambda host: is_local(host.name),
    lambda host, options: [sys.executable, *boot_here()],
    lambda host, said, code: ssh.agent_killed(code) or ssh.ended("its agent", said, code),
    is_remote=False,
)
_SRUN: Final = Spawner(
    lambda host: host.scheduler == SLURM,
    srun.agent_command,
    srun.explain,
    is_remote=True,
    is_scheduled=True,
    noise=srun.NOISE,
)
_SPAWNERS: Final = (
    replace(_SRUN, serves=lambda host: host.scheduler == SLURM and is_local(host.name), is_remote=False),
    _SRUN,
    _LOCAL,
    Spawner(lambda host: True, ssh.agent_command, ssh.explain, is_remote=True),
)


def spawner_of(host: Host) -> Spawner:
    """The first row that serves ``host``."""
    return next(spawner for spawner in _SPAWNERS if spawner.serves(host))


def ways_to(hosts: Sequence[Host], used: Collection[str], options: SshOptions) -> list[list[str]]:
    """The commands that reach those of ``hosts`` that are ``used``, but for an agent that is hvdrun's own child."""
    reached = {host.name: host for host in hosts if host.name in used and spawner_of(host) is not _LOCAL}
    return [spawner_of(host).command(host, options) for host in reached.values()]
