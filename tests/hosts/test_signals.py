"""Signals to hvdrun mean the same for ranks of all hosts."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.harness.hosts import Network
from tests.hosts.endings import still_on
from tests.hosts.jobs import rest_of, running
from tests.hosts.starting import Start
from tests.launcher.hvdrun import read_until

ANYWHERE = pytest.mark.parametrize("start", ["local", "ssh", "nodes"], indirect=True)
DEAF = "trap '' INT TERM; echo ready; while :; do sleep 600; done"


@ANYWHERE
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_job_politely(
    network: Network, start: Start, tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    asked = "INT" if signum == signal.SIGINT else "TERM"
    program = f"trap 'echo saved > {tmp_path}/saved.$RANK; exit 0' {asked}; echo ready; sleep 600 & wait"
    with start.running(network, "a:1,b:1,c:1", "sh", "-c", program, ranks=3) as process:
        process.send_signal(signum)
        ended, said = rest_of(process)
    assert ended == code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved.0", "saved.1", "saved.2"]
    assert said.count("\n") == 1
    assert signum.name in said
    assert still_on(network) == []


@pytest.mark.faults
def test_ranks_that_ignore_it_are_killed_after_five_seconds(network: Network) -> None:
    with running(network["a"], "-H", "a:1,b:1", "sh", "-c", DEAF, ranks=2) as process:
        begun = time.monotonic()
        process.terminate()
        assert rest_of(process)[0] == 143
        assert time.monotonic() - begun > 4.5
    assert still_on(network) == []


@ANYWHERE
def test_a_second_signal_kills_at_once(network: Network, start: Start) -> None:
    with start.running(network, "a:1,b:1", "sh", "-c", DEAF, ranks=2) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        read_until(process.stderr.fileno(), lambda found: b"once more" in found)
        process.send_signal(signal.SIGINT)
        assert rest_of(process)[0] == 130
    assert still_on(network) == []


@ANYWHERE
@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_reach_the_ranks_and_end_nothing(network: Network, start: Start, signum: signal.Signals) -> None:
    program = f"trap 'echo got it; exit 0' {signum.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.1; done"
    with start.running(network, "a:1,b:1", "sh", "-c", program, ranks=2) as process:
        process.send_signal(signum)
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"got it") == 2)
        assert rest_of(process) == (0, "")
