"""How jobs of nodes end: by signals to any of them, and when one of them, or its agent, is killed."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest

from tests.harness.patience import PATIENCE_S, until
from tests.hosts.nodes import WAIT, ending, free_port, job, node, ready, run, start
from tests.launcher.hvdrun import pids_in, python, read_until, still_alive

HERE = socket.gethostname()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_any_node_ends_the_job_politely(tmp_path: Path, which: int, signum: int, code: int) -> None:
    asked = "INT" if signum == signal.SIGINT else "TERM"
    program = f"trap 'echo saved > {tmp_path}/saved.$RANK; exit 0' {asked}; echo ready; sleep 600 & wait"
    with job("sh", "-c", program) as nodes:
        ready(nodes[0])
        nodes[which].send_signal(signum)
        ended = [each.rest() for each in nodes]
    assert [each.code for each in ended] == [code, code]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved.0", "saved.1"]
    where = f" on {HERE}#1" if which else ""
    assert f"hvdrun: {signal.Signals(signum).name}{where}: ending 2 rank(s)" in ended[0].err


def test_a_signal_to_every_node_at_once_is_one_signal(tmp_path: Path) -> None:
    program = f"trap 'sleep 0.5; echo saved > {tmp_path}/saved.$RANK; exit 0' TERM; echo ready; sleep 600 & wait"
    with job("sh", "-c", program, count=3) as nodes:
        ready(nodes[0], 3)
        for each in nodes:
            each.send_signal(signal.SIGTERM)
        assert [each.rest().code for each in nodes] == [143] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved.0", "saved.1", "saved.2"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_second_signal_to_the_same_node_kills_at_once(which: int) -> None:
    with job("sh", "-c", "trap '' TERM INT; echo ready; while :; do sleep 600; done") as nodes:
        ready(nodes[0])
        nodes[which].send_signal(signal.SIGTERM)
        assert nodes[which].stderr is not None
        read_until(nodes[which].stderr.fileno(), lambda found: b"once more" in found)  # type: ignore[union-attr]
        nodes[which].send_signal(signal.SIGTERM)
        assert [each.rest().code for each in nodes] == [143, 143]


def test_user_signals_to_any_node_reach_all_ranks() -> None:
    program = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.1; done"
    with job("sh", "-c", program) as nodes:
        ready(nodes[0])
        nodes[1].send_signal(signal.SIGUSR1)
        ended = [each.rest() for each in nodes]
    assert [each.code for each in ended] == [0, 0]
    assert ended[0].out.count("got it") == 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_node_that_is_killed_ends_the_job_and_leaves_nobody(tmp_path: Path, which: int) -> None:
    with job(*WAIT, environ={"FOLDER": str(tmp_path)}) as nodes:
        ready(nodes[0])
        nodes[which].kill()
        ended = nodes[1 - which].rest()
        assert ended.code == 1
        told = (f"node 0 on {HERE} is lost: ", "see the log of node 0, and start the job again on all nodes")
        if which == 1:  # SIGKILL of a process that has not read everything breaks the connection
            told = (f"rank 1 on {HERE}#1 was lost: ", "its pod was evicted", "start the job again on all nodes")
            assert re.search(r"hvdrun there has ended without a word|the connection to its hvdrun broke", ended.err)
        for text in told:
            assert text in ended.err
        nodes[which].rest()
    assert still_alive(pids_in(tmp_path), PATIENCE_S) == []


def test_an_agent_that_dies_is_named_and_its_own_node_ends_too(tmp_path: Path) -> None:
    with job(*WAIT, environ={"FOLDER": str(tmp_path)}) as nodes:
        ready(nodes[0])
        (guard,) = psutil.Process(nodes[1].pid).children()
        guard.terminate()
        ended = [each.rest() for each in nodes]
    assert [each.code for each in ended] == [1, 1]
    assert f"rank 1 on {HERE}#1 was lost: its agent ended" in ended[0].err
    assert still_alive(pids_in(tmp_path), PATIENCE_S) == []


def test_a_node_that_is_asked_to_end_while_it_waits_ends_at_once() -> None:
    port = free_port()
    for rank in (0, 1):
        with ending(alone := node(rank, 2, port, "true", environ={"HVDLITE_START_TIMEOUT": "10000"})):
            assert alone.stderr is not None
            read_until(alone.stderr.fileno(), lambda found: b"waiting for node" in found)
            alone.send_signal(signal.SIGTERM)
            assert alone.rest().code == 143


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_nodes_that_wait_for_others_hear_why_node_0_ends(signum: signal.Signals) -> None:
    port = free_port()
    nodes = [node(rank, 3, port, "true", environ={"HVDLITE_START_TIMEOUT": "10000"}) for rank in range(2)]
    with ending(*nodes):
        until(lambda: bool(psutil.Process(nodes[1].pid).children()))  # its agent, which it starts once it is let in
        nodes[0].send_signal(signum)
        first, second = (each.rest() for each in nodes)
    assert (first.code, second.code) == (128 + signum, 128 + signum)
    assert f"node 0 on {HERE} did not start the job: it got {signum.name}" in second.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be process 1 of a namespace")
@pytest.mark.parametrize("which", [0, 1])
def test_the_first_process_of_a_container_ends_by_sigterm_too(which: int) -> None:
    """The kernel drops a signal for which process 1 has no handler."""
    port = free_port()
    place = ("--node-rank", str(which), "--nnodes", "2", "--master", f"localhost:{port}", "true")
    container = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    with ending(outer := start(place, {"HVDLITE_START_TIMEOUT": "10000"}, container=container)):
        assert outer.stderr is not None
        read_until(outer.stderr.fileno(), lambda found: b"waiting for node" in found)
        (first,) = psutil.Process(outer.pid).children()
        first.terminate()
        assert outer.rest().code == 143


def test_the_port_of_node_0_may_be_taken() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with ending(alone := node(0, 2, port, "true")):
            code, _, err = alone.rest()
    assert code == 1
    assert f"node 0 cannot listen at port {port}: Address already in use" in err


def test_much_output_comes_whole() -> None:
    program = "import os\nfor number in range(20_000): os.write(1, b'%d %s\\n' % (number, b'x' * 80))"
    first, second = run(*python(program))
    assert (first.code, second.code) == (0, 0), first.err
    for rank in (0, 1):
        start_of_line = f"[{rank}]<stdout>:"
        lines = [line.removeprefix(start_of_line) for line in first.out.splitlines() if line.startswith(start_of_line)]
        assert lines == [f"{number} {'x' * 80}" for number in range(20_000)]
