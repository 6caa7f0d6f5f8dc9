"""The ssh command of a host, and what is made of its failures."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.launcher.spawners import SshOptions, spawner_of, ssh, ways_to
from hvdlite.launcher.stream.frames import GREETING
from hvdlite.launcher.where.hosts import Host
from tests.harness.patience import PATIENCE_S

HOST = Host("far", 2, "me")


def test_the_command_is_ssh_with_the_users_options_first_and_one_remote_line() -> None:
    options = SshOptions(2222, "/keys/id", ("-o", "ConnectTimeout=3"), "/opt/python")
    command = ssh.agent_command(HOST, options)
    assert command[:5] == ["ssh", "-T", "-x", "-o", "ConnectTimeout=3"]
    assert command[5:9] == ["-p", "2222", "-i", "/keys/id"]
    assert {"BatchMode=yes", "StrictHostKeyChecking=accept-new"} < set(command)
    assert command[-3:-1] == ["--", "me@far"]
    assert shlex.split(command[-1])[:4] == ["exec", "/opt/python", "-I", "-S"]
    assert "\n" not in command[-1]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_remote_line_takes_the_same_python_as_here_and_else_python3(shell: str, tmp_path: Path) -> None:
    python3 = tmp_path / "python3"
    python3.write_text("#!/bin/sh\necho this one: $1 $2\n")
    python3.chmod(0o755)
    line = ssh.agent_command(HOST, SshOptions())[-1]
    assert sys.executable in line
    elsewhere = line.replace(sys.executable, "/no/such/python")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    found = subprocess.run(
        [shell, "-c", elsewhere], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert found.stdout == "this one: -I -S\n"


def test_an_agent_elsewhere_finds_the_package_that_its_python_has(tmp_path: Path) -> None:
    python = ["env", "-i", "sh", "-c", ssh.agent_command(HOST, SshOptions(python=sys.executable))[-1]]
    ended = subprocess.run(python, input=b"", capture_output=True, cwd=tmp_path, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.startswith(GREETING)


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        ("me@far: Permission denied (publickey).", 255, "ssh-copy-id me@far, or name another key with -i"),
        ("Host key verification failed.", 255, "ssh-keygen -R far"),
        ("ssh: Could not resolve hostname far: Name or service not known", 255, "check the spelling"),
        (
            "ssh: connect to host far port 22: Connection refused",
            255,
            "no sshd listens there; start it, or name its port",
        ),
        ("ssh: connect to host far port 22: Connection timed out", 255, "no firewall is in between"),
        ("hvdlite is not installed for /usr/bin/python3", 1, "name the Python that has it with --remote-python"),
        ("sh: 1: exec: python3: not found", 127, "no Python was found there; name one with --remote-python"),
        ("something else.", 3, "ssh ended with code 3: something else; try ssh me@far"),
        ("", 137, "its agent was killed by signal 9 (SIGKILL), possibly out of memory: see 'dmesg' there"),
        ("the cable timed out", 143, "its agent was killed by signal 15 (SIGTERM)"),
        ("something else.", 255, "ssh ended with code 255: something else; try ssh me@far"),
        ("bye", -9, "ssh was ended by signal 9: bye; try ssh me@far"),
    ],
)
def test_a_failure_is_one_line_with_what_to_do(said: str, code: int, message: str) -> None:
    explained = ssh.explain(HOST, ["Warning: added far to the list of known hosts.", said], code)
    assert message in explained
    assert "\n" not in explained


def test_this_machine_is_reached_without_ssh() -> None:
    assert not spawner_of(Host("localhost")).is_remote
    assert spawner_of(Host("far")).is_remote
    assert (
        len(
            ways_to(
                (Host("localhost"), Host("far", 1), Host("far", 2), Host("idle")), ["localhost", "far"], SshOptions()
            )
        )
        == 1
    )
