"""Remains of a killed job on other hosts do not affect the next one, which listens on the same ports."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.faults.training import training
from tests.harness import faults
from tests.harness.hosts import Network
from tests.hosts.endings import still_on

PORTS = ("--port-range", "40000-40009")
PATIENCE = {"HVDLITE_PEER_TIMEOUT": "30"}  # a rank that is cut off dials until its lease ends


@pytest.mark.faults
def test_ranks_of_a_killed_job_that_dial_the_next_one_are_refused(network: Network) -> None:
    a, b = network["a"], network["b"]
    with ExitStack() as cuts, training(network, "a:1,b:1", options=PORTS, environment=PATIENCE) as old:
        leftover = old.rank(1)
        cuts.enter_context(faults.cut(a, b, faults.on_port(22)))
        with ExitStack() as cut:
            cut.enter_context(faults.cut(a, b, faults.BESIDES_SSH))
            old.process.kill()
            assert still_on([a]) == []
            with training(network, "a:1,c:1", options=PORTS) as job:
                assert leftover.is_running()
                cut.close()
                assert still_on([b], besides="sshd") == []
                job.wait_for_steps(5)
                ended = job.finish()
    assert ended.code == 0, ended.said
    assert {(report.error, report.wrong) for report in ended.reports.values()} == {("", "")}
    assert "did not prove" in ended.said
    for session in b.processes("sshd: "):  # it waits for answers that were lost
        session.kill()
