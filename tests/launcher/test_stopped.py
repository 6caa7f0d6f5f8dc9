"""hvdrun names a rank that a signal has stopped while the others wait for it in init()."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from hvdlite.launcher.agent.ranks.workers import Workers
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import read_until, started

_STOPS = """
import os, signal
import numpy as np
import hvdlite as hvd
from hvdlite import session
from hvdlite.rendezvous import client

def stop():
    if os.environ["HVDLITE_RANK"] == "1":
        signal.raise_signal(signal.SIGSTOP)  # of this thread: another one might stop only after this one has gone on

class StopAndExchange(client.Exchanges):
    def __call__(self, offer):
        if self._round == {round}:
            stop()
        return super().__call__(offer)

if {round} < 0:
    stop()
session.Exchanges = StopAndExchange
hvd.init()
assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == 3
"""
_LINE = rb"hvdrun: rank 1 on \S+, process (\d+), is stopped \(SIGSTOP, a debugger\); ranks that need it wait until "


@pytest.mark.parametrize("number", [-1, 0, 1, 3])
def test_a_rank_that_is_stopped_before_or_in_init_is_named_and_all_go_on_with_it(tmp_path: Path, number: int) -> None:
    """Number -1 is before init(), the others are a round of it."""
    script = tmp_path / "train.py"
    script.write_text(_STOPS.format(round=number))
    with started("-np", "3", sys.executable, str(script)) as process:
        assert process.stderr is not None
        told = read_until(process.stderr.fileno(), lambda found: found.endswith(b"\n"))
        pids = re.findall(_LINE, told)
        assert len(pids) == 1, told
        os.kill(int(pids[0]), signal.SIGCONT)
        _, later = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, later) == (0, b""), later.decode()


def test_a_rank_is_named_once_for_each_time_that_it_is_stopped_for_long() -> None:
    workers = Workers()
    worker = workers.start(0, ["sleep", "600"], dict(os.environ), "/")
    pid = worker.process.pid
    try:
        _send(pid, signal.SIGSTOP, os.WSTOPPED)
        assert list(workers.stopped(now=10.0)) == []
        assert workers.stop_due == 12.5
        _send(pid, signal.SIGCONT, os.WCONTINUED)
        assert list(workers.stopped(now=13.0)) == []
        assert workers.stop_due is None
        for now in (20.0, 30.0):
            _send(pid, signal.SIGSTOP, os.WSTOPPED)
            assert list(workers.stopped(now)) == []
            assert list(workers.stopped(now + 2.5)) == [worker]
            assert list(workers.stopped(now + 9.0)) == []
            assert workers.stop_due is None
            _send(pid, signal.SIGCONT, os.WCONTINUED)
            assert list(workers.stopped(now + 9.5)) == []
    finally:
        worker.process.kill()
        worker.process.wait()
        optional = (each for each in (worker.pidfd, worker.blackbox) if each is not None)
        for descriptor in (*worker.pipes, worker.report, *optional):
            os.close(descriptor)


def _send(pid: int, signum: signal.Signals, news: int) -> None:
    os.kill(pid, signum)
    os.waitid(os.P_PID, pid, news | os.WNOWAIT)
