"""Starts an agent on another host through the system's ssh, with the user's configuration, keys and jump hosts.

One connection per host carries everything. The command line only locates Python; environment, job key and command go
through the connection. ssh uses the first value of an option, so the user's come first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hvdlite.host.processes import signal_name

from ..where.hosts import Host
from .boot import line_elsewhere

CONNECT_TIMEOUT_S: Final = 10
_OPTIONS: Final = (
    "BatchMode=yes",  # nobody is there to answer a question
    f"ConnectTimeout={CONNECT_TIMEOUT_S}",
    "StrictHostKeyChecking=accept-new",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlMaster=no",  # a shared connection that is open is used, but none is left behind
    "ClearAllForwardings=yes",
    "RemoteCommand=none",
)
_ADVICE: Final = (
    ("Permission denied", "let it in without a password: ssh-copy-id {target}, or name another key with -i"),
    ("Host key verification failed", "if its key was changed on purpose, forget the old one: ssh-keygen -R {name}"),
    ("Could not resolve hostname", "check the spelling of the name"),
    ("Connection refused", "no sshd listens there; start it, or name its port with -p"),
    ("timed out", "check that the host is up and that no firewall is in between"),
    ("No route to host", "check that the host is up and that no firewall is in between"),
    ("Network is unreachable", "check that the host is up and that a network leads to it"),
    ("is not installed for", "install it there, or name the Python that has it with --remote-python"),
)
_NOT_FOUND: Final = 127  # a shell's code for a command that it did not find


@dataclass(frozen=True, slots=True)
class SshOptions:
    """The user's options for ssh, and the ``python`` of other hosts; empty: the same as here, else python3."""

    port: int | None = None
    identity: str = ""
    arguments: tuple[str, ...] = ()
    python: str = ""


def agent_command(host: Host, options: SshOptions) -> list[str]:
    """The ssh command whose stdin and stdout are those of an agent on ``host``."""
    command = ["ssh", "-T", "-x", *options.arguments]
    if options.port is not None:
        command += ["-p", str(options.port)]
    if options.identity:
        command += ["-i", options.identity]
    for option in _OPTIONS:
        command += ["-o", option]
    return [*command, "--", host.address, line_elsewhere(options.python)]


def explain(host: Host, said: Sequence[str], code: int) -> str:
    """One line: why ssh, or the agent, ended with ``code``, and what to do about it."""
    if killed := agent_killed(code):
        return killed
    if known := advised(_ADVICE, host, said):
        return known
    if code == _NOT_FOUND:
        return "no Python was found there; name one with --remote-python"
    return f"{ended('ssh', said, code)}; try ssh {host.address}"


def agent_killed(code: int) -> str:
    """Which signal killed the agent, by the ``code`` that ssh or srun passes on; empty if none did."""
    signum = code - 128
    if signum not in signal.valid_signals():
        return ""
    advice = ", possibly out of memory: see 'dmesg' there" if signum == signal.SIGKILL else ""
    return f"its agent was killed by signal {signum} ({signal_name(signum)}){advice}"


def advised(advice: Iterable[tuple[str, str]], host: Host, said: Sequence[str]) -> str:
    """The first line that has a sign of ``advice``, and the advice; empty if there is none."""
    for sign, text in advice:
        for line in said:
            if sign in line:
                return f"{line.strip().rstrip('.')}; {text.format(target=host.address, name=host.name)}"
    return ""


def ended(program: str, said: Sequence[str], code: int) -> str:
    """How ``program`` ended, and its last line."""
    last = " ".join(said[-1:]).rstrip(".")
    how = f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
    return f"{program} {how}: {last or 'it wrote nothing'}"
