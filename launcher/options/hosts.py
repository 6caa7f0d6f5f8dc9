"""Command-line options for hosts and how to reach them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

import click

from ..spawners import SshOptions
from ..where.hosts import Host, parse_hosts, read_hostfile
from .gather import gathered
from .values import PathName

_PORTS: Final = re.compile(r"(\d{1,5})-(\d{1,5})")


class HostOptions(NamedTuple):
    """The checked options. ``interfaces`` are names, addresses or subnets; empty: hvdrun finds one."""

    hosts: str | None
    hostfile: str | None
    ssh_port: int | None
    ssh_identity: str | None
    ssh_arguments: tuple[str, ...]
    remote_python: str
    interfaces: tuple[str, ...]
    ports: range | None

    @property
    def are_named(self) -> bool:
        """True if the user has named hosts, or a file of them."""
        return self.hosts is not None or self.hostfile is not None

    def listed(self) -> tuple[Host, ...]:
        """The hosts that were given; none means this machine. Raises BadHostSpec, or UsageError for two lists."""
        if self.hosts is not None and self.hostfile is not None:
            raise click.UsageError("-H and --hostfile exclude each other; give one of them.")
        if self.hostfile is not None:
            return read_hostfile(self.hostfile)
        return parse_hosts(self.hosts) if self.hosts is not None else ()

    @property
    def ssh(self) -> SshOptions:
        return SshOptions(self.ssh_port, self.ssh_identity or "", self.ssh_arguments, self.remote_python)


def _words(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(word for value in values for word in shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{' '.join(values)!r} cannot be split into words: {error}.") from None


def _listed(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _port_range(context: click.Context, parameter: click.Parameter, text: str | None) -> range | None:
    if text is None:
        return None
    match = _PORTS.fullmatch(text.strip())
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 0 < first <= last < 1 << 16:
        raise click.BadParameter(f"{text!r} is not a range of ports, as in 40000-40100.")
    return range(first, last + 1)


def _identity(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    if path is not None and not Path(path).expanduser().is_file():
        raise click.BadParameter(f"there is no file {path!r}.")
    return path


_OPTIONS: Final = (
    click.option("-H", "--hosts", "hosts", metavar="HOST:N,...", help="Hosts, and the most ranks on each."),
    click.option("-hostfile", "--hostfile", "hostfile", type=PathName(), metavar="FILE",
                 help="Read hosts from a file, one per line."),
    click.option("-p", "--ssh-port", "ssh_port", type=click.IntRange(1, 65535), metavar="PORT",
                 help="The port of sshd."),
    click.option("-i", "--ssh-identity-file", "ssh_identity", type=PathName(), metavar="FILE", callback=_identity,
                 help="The private key for ssh."),
    click.option("--ssh-args", "ssh_arguments", multiple=True, metavar="WORDS", callback=_words,
                 help="More options of ssh, as in --ssh-args '-J gateway'."),
    click.option("--remote-python", "remote_python", default="", metavar="PATH",
                 help="The Python of other hosts that has hvdlite."),
    click.option("--network-interface", "--network-interfaces", "interfaces", multiple=True, metavar="NAME,...",
                 callback=_listed, help="Use these interfaces, addresses or subnets between hosts."),
    click.option("--port-range", "ports", metavar="FIRST-LAST", callback=_port_range,
                 help="Listen on these ports only, for a firewall."),
)  # fmt: skip

host_options: Final = gathered("where", HostOptions, _OPTIONS)
"""Adds these options to a command, whose function gets them as ``where``."""
