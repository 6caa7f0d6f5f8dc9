"""Murders and cut networks: hvdrun says which host is lost, and nobody is left on any of them."""

from __future__ import annotations

import signal
import time

import pytest

from tests.harness.faults import cut, on_port
from tests.harness.hosts import Network
from tests.harness.patience import PATIENCE_S
from tests.hosts.endings import still_on
from tests.hosts.jobs import SAY_READY, rest_of, running
from tests.hosts.starting import Start
from tests.launcher.hvdrun import python

# A rank with a child in its group and one that left it, both deaf to SIGTERM.
FAMILY = """
sh -c 'trap "" TERM; while :; do sleep 600; done' &
setsid sh -c 'trap "" TERM; echo ready; while :; do sleep 600; done' &
wait
"""
# A rank on b that writes more than all the buffers on its way hold.
LOUD = """
import os, time
os.write(1, b"ready\\n")
while True:
    if os.environ["RANK"] == "1":
        os.write(1, b"x" * 65535 + b"\\n")
    time.sleep(0.005)
"""
AGENT = "hvdlite.launcher.agent.agent"


def test_killing_hvdrun_leaves_nobody_on_any_host(network: Network, start: Start) -> None:
    with start.running(network, "a:1,b:1,c:1", "sh", "-c", FAMILY, ranks=3) as process:
        process.kill()
        assert still_on(network) == []


# Who is killed, on which host: ssh itself, the session at its other end, the agent.
@pytest.mark.parametrize(
    ("host", "victim"),
    [
        pytest.param("a", "ssh -T", marks=pytest.mark.faults),
        ("b", "sshd: root"),
        pytest.param("b", AGENT, marks=pytest.mark.faults),
    ],
)
def test_a_lost_agent_ends_the_job(network: Network, host: str, victim: str) -> None:
    with running(network["a"], "-H", "a:1,b:1", "sh", "-c", FAMILY, ranks=2) as process:
        youngest = max(network[host].processes(victim), key=lambda found: found.pid)  # an agent, not its guard
        youngest.kill()
        code, said = rest_of(process)
    assert code == 1
    assert "rank 1 on b was lost" in said
    assert still_on(network) == []


def test_a_killed_rank_elsewhere_ends_the_job(network: Network, start: Start) -> None:
    with start.running(network, "a:1,b:1", "sh", "-c", SAY_READY, ranks=2) as process:
        (rank,) = network["b"].processes("sleep 600", besides="hvdlite")
        rank.kill()
        code, said = rest_of(process)
    assert code == 128 + signal.SIGKILL
    assert "rank 1 on b was ended by signal 9" in said
    assert still_on(network) == []


@pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.faults)], ids=["port", "everything"])
def test_a_network_that_drops_everything_ends_both_sides(network: Network, start: Start, is_all: bool) -> None:
    a, b = network["a"], network["b"]
    which = ("",) if is_all else on_port(start.port)
    with start.running(network, "a:1,b:1", "sh", "-c", FAMILY, ranks=2) as process, cut(a, b, which):
        assert still_on([b], besides="sshd") == []
        code, said = rest_of(process)
    assert code == 1
    assert "rank 1 on b was lost" in said
    assert "no sign of life" in said
    assert still_on([a]) == []
    for session in b.processes("sshd: root"):  # it waits for answers that were lost
        session.kill()


@pytest.mark.parametrize("start", ["nodes", pytest.param("ssh", marks=pytest.mark.faults)], indirect=True)
def test_ranks_that_write_much_end_too_when_the_network_drops_everything(network: Network, start: Start) -> None:
    a, b = network["a"], network["b"]
    with start.running(network, "a:1,b:1", *python(LOUD), ranks=2) as process, cut(a, b):
        assert still_on([b], besides="sshd") == []
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "rank 1 on b was lost" in said.decode()
    for session in b.processes("sshd: root"):  # it waits for answers that were lost
        session.kill()


@pytest.mark.faults
def test_a_stopped_agent_is_given_up(network: Network, start: Start) -> None:
    with start.running(network, "a:1,b:1", "sh", "-c", SAY_READY, ranks=2) as process:
        _, agent = network["b"].processes(AGENT)  # the first is its guard
        agent.suspend()
        code, said = rest_of(process)
        assert code == 1
        assert "rank 1 on b was lost" in said
        agent.resume()
        assert still_on(network) == []


@pytest.mark.faults
def test_an_hvdrun_that_is_stopped_for_long_goes_on(network: Network, start: Start) -> None:
    with start.running(network, "a:1,b:1", "sh", "-c", "echo ready; sleep 12; echo done", ranks=2) as process:
        process.send_signal(signal.SIGTSTP)
        time.sleep(10.5)  # longer than any lease
        process.send_signal(signal.SIGCONT)
        assert rest_of(process) == (0, "")
