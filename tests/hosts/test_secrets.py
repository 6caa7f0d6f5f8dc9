"""The job's key is seen by the ranks of the job and by nobody else."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.harness.hosts import Network
from tests.hosts.jobs import SAY_READY, hvdrun, running

NOBODY = 65534


def test_another_user_of_any_host_does_not_see_the_key(network: Network, tmp_path: Path) -> None:
    options = ("-H", "a:1,b:1", "--verbose", "--output-filename", str(tmp_path / "logs"))
    with running(network["a"], *options, "sh", "-c", SAY_READY, ranks=2):
        members = [process for host in network for process in host.processes()]
        keys = {member.environ()["HVDLITE_SECRET"] for member in members if "HVDLITE_SECRET" in member.environ()}
        (key,) = keys
        assert len(key) == 64
        seen = subprocess.run(
            ["ps", "axeww"], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True
        )
        assert "sleep 600" in seen.stdout
        assert key not in seen.stdout
        assert not [member for member in members if key in " ".join(member.cmdline())]
        for member in members:
            ended = subprocess.run(
                ["cat", f"/proc/{member.pid}/environ"], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True
            )
            assert (ended.returncode, ended.stdout) == (1, b"")
    written = [path.read_bytes() for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert written
    assert not any(key.encode() in text for text in written)


def test_hvdrun_says_the_key_nowhere(network: Network) -> None:
    ended = hvdrun(network["a"], "-H", "a:1,b:1", "--verbose", "sh", "-c", "echo $HVDLITE_SECRET")
    (key,) = {line.split(":")[1] for line in ended.stdout.splitlines()}
    assert len(key) == 64
    assert key not in ended.stderr


def test_nothing_listens_but_sshd(network: Network) -> None:
    with running(network["a"], "-H", "a:1,b:1", "sh", "-c", SAY_READY, ranks=2):
        for host in network:
            listeners = host.check("ss", "-Hltun").splitlines()
            assert {line.split()[4] for line in listeners} == {"0.0.0.0:22", "[::]:22"}
