"""The test hosts themselves: they are separate where hosts are, reach each other over ssh, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.harness.hosts import ROOT, Network, missing
from tests.harness.patience import PATIENCE_S


def test_hosts_reach_each_other_over_ssh(network: Network) -> None:
    for here, there in (("a", "b"), ("b", "c"), ("c", "a")):
        ended = network[here].run("ssh", "-o", "BatchMode=yes", there, "hostname; echo $SSH_CONNECTION")
        assert ended.returncode == 0, ended.stderr
        name, client, _, server, port = ended.stdout.split()
        assert (name, client, server, port) == (there, network[here].address, network[there].address, "22")


def test_an_unknown_host_and_a_key_that_is_not_known_are_refused(network: Network) -> None:
    ended = network["a"].run("ssh", "-o", "BatchMode=yes", "d", "true")
    assert (ended.returncode, ended.stderr.strip()) == (
        255,
        "ssh: Could not resolve hostname d: Name or service not known",
    )
    ended = network["a"].run("ssh", "-o", "BatchMode=yes", "-o", "UserKnownHostsFile=/dev/null", "b", "true")
    assert ended.returncode == 255
    assert "Host key verification failed" in ended.stderr


def test_hosts_share_files_but_not_processes_shared_memory_or_names(network: Network, tmp_path: Path) -> None:
    network["a"].check("sh", "-c", f"hostname > {tmp_path}/name; echo > /dev/shm/x; echo $$ > /run/x")
    assert (tmp_path / "name").read_text() == "a\n"
    assert network["b"].check("ls", "/dev/shm") == ""
    assert "x" not in network["b"].check("ls", "/run").split()
    network["a"].check("rm", "/dev/shm/x", "/run/x")
    with network["a"].popen("sh", "-c", "echo ready; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert [found.pid for found in network["a"].processes("sleep 600")] == [process.inner.pid]
        assert network["b"].processes("sleep") == []
        assert "sleep" not in network["b"].check("ps", "ax")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_signals_reach_the_command_itself_and_its_code_comes_back(network: Network, signum: signal.Signals) -> None:
    program = "import signal, sys; print('ready', flush=True); signal.pause()"
    with network["b"].popen(sys.executable, "-S", "-c", program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signum)
        assert process.wait(PATIENCE_S) == -signum


def test_hosts_end_with_the_process_that_made_them() -> None:
    if reason := missing():
        pytest.skip(reason)
    program = """
import sys
from tests.harness.hosts import Network
with Network("a", "b") as network:
    with network["a"].popen("ssh", "b", "setsid sleep 600 & echo ready; exec sleep 600") as process:
        process.stdout.readline()
        print(*(found.pid for host in network for found in host.processes()), flush=True)
        sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        members = [psutil.Process(int(pid)) for pid in line.split()]
        assert len(members) >= 4
        os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(members, timeout=PATIENCE_S)
    assert [member for member in alive if member.status() != psutil.STATUS_ZOMBIE] == []
