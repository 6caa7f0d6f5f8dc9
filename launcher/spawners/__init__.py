"""Ways to start the agent of a host, one file and one row of the table each.

A spawner turns a host into a command whose stdin and stdout are the agent's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hvdlite.errors import CannotStart

from ..hosts import is_local
from .local import agent_command

_SPAWNERS: Final[tuple[tuple[Callable[[str], bool], Callable[[], list[str]]], ...]] = ((is_local, agent_command),)


def command_for(host: str) -> list[str]:
    """The command that starts the agent of ``host``. Raises CannotStart if no spawner reaches it."""
    for serves, command in _SPAWNERS:
        if serves(host):
            return command()
    raise CannotStart(host, "it is not this machine", exit_code=2)
