"""Starts an agent on this machine, as a child of hvdrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..where.hosts import Host
from .boot import boot_here
from .ssh import SshOptions


def agent_command(host: Host, options: SshOptions) -> list[str]:
    """The command of an agent."""
    return [sys.executable, *boot_here()]


def explain(host: Host, said: Sequence[str], code: int) -> str:
    """The reason why the agent ended with ``code`` before its hello; ``said`` is what it wrote to stderr."""
    return f"its agent ended with code {code}: {' '.join(said[-1:]) or 'it said nothing'}"
