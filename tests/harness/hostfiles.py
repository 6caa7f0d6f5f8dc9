"""The files of a test host: names, keys and the configuration of ssh."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_SSHD_CONFIG = """\
HostKey /run/sshd/host_key
PidFile /run/sshd/pid
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
"""
_NAME_SERVICES = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
_USER = "user"


class Keys:
    """One key for the user and one for each host, as files of a temporary folder; a context manager."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="test-hosts-")
        names = [f"{host}.host" for host in hosts]
        commands = [
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self._path(name))]
            for name in (_USER, *names)
        ]
        for process in [subprocess.Popen(command) for command in commands]:
            if process.wait(10.0):
                raise RuntimeError("ssh-keygen failed, see above")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def private(self, owner: str) -> str:
        return self._path(owner).read_text()

    def public(self, owner: str) -> str:
        return self._path(f"{owner}.pub").read_text()

    def _path(self, name: str) -> Path:
        return Path(self._folder.name, name)


def _users() -> str:
    """/etc/passwd with a shell for this user that reads no startup files, which are not under test."""
    me = os.geteuid()
    users = ([*user[:6], "/bin/sh" if user.pw_uid == me else user.pw_shell] for user in pwd.getpwall())
    return "".join(":".join(map(str, user)) + "\n" for user in users)


def files_of(name: str, addresses: Mapping[str, str], keys: Keys) -> dict[str, str]:
    """The files of host ``name`` by path. ``addresses`` are those of all hosts by name."""
    ssh = f"{pwd.getpwuid(os.geteuid()).pw_dir}/.ssh"
    lines = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in addresses.items())]
    known = (f"{host},{address} {keys.public(f'{host}.host')}" for host, address in addresses.items())
    return {
        "/etc/hosts": "\n".join(lines) + "\n",
        "/etc/passwd": _users(),
        "/etc/nsswitch.conf": _NAME_SERVICES,
        "/run/sshd/config": _SSHD_CONFIG,
        "/run/sshd/host_key": keys.private(f"{name}.host"),
        f"{ssh}/id_ed25519": keys.private(_USER),
        f"{ssh}/authorized_keys": keys.public(_USER),
        f"{ssh}/known_hosts": "".join(known),
    }
