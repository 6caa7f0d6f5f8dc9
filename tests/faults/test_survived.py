"""Faults that no job may mind: all ranks go on, and every sum is exact."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from tests.faults import acts
from tests.faults.training import training
from tests.harness.hosts import Network


@dataclass(frozen=True)
class Row:
    """An ``act`` that lasts ``seconds``; after it the job makes steps again."""

    name: str
    act: acts.Act
    seconds: float
    hosts: str = "a:2,b:2"


ROWS = [
    Row("a rank stops for 3 s", acts.stop(2), 3.0),
    Row("the root stops for 3 s", acts.stop(0), 3.0),
    Row("a host is frozen for 3 s", acts.freeze("b"), 3.0),
    Row("a rank has a tenth of a core", acts.starve(3, 10), 5.0),
    Row("eight busy loops", acts.crowd(8), 3.0),
    Row("eight busy loops for a minute", acts.crowd(8), 60.0),
    # TCP sends a lost packet again after 3 s, and then only after 6.2 s: too late for an agent that waits for hvdrun.
    Row("an interface is down for 2.5 s", acts.link_down("b"), 2.5),
    Row("a cable is out for 2.5 s", acts.unplug("b"), 2.5),
    Row("one packet in twenty is lost", acts.lose(5), 4.0),
    Row("a long and bad line", acts.worsen(10.0, 4.0, 0.05, 0.01), 5.0),
    Row("a connection is reset each second", acts.reset_connections("b"), 10.0),
    Row("one segment in a hundred is altered", acts.alter("b", "a"), 5.0),
    Row("strangers send garbage to every port", acts.pester("c", "ab"), 5.0),
]
FAST = {
    "a host is frozen for 3 s",
    "eight busy loops",
    "a cable is out for 2.5 s",
    "strangers send garbage to every port",
}
# More than the default, so that a busy machine has time to connect again after what lasts as long as it may.
PATIENCE = {"HVDLITE_PEER_TIMEOUT": "6.5"}


def _marks(row: Row) -> list[pytest.MarkDecorator]:
    alone = [pytest.mark.alone] if "busy loops" in row.name else []
    return alone if row.name in FAST else [*alone, pytest.mark.faults]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=_marks(row)) for row in ROWS])
def test_the_job_goes_on(network: Network, row: Row) -> None:
    if reason := acts.missing_for(row.act):
        pytest.skip(reason)
    with training(network, row.hosts, environment=PATIENCE) as job:
        with row.act(job):
            threading.Event().wait(row.seconds)  # how long the fault lasts
        job.wait_for_steps(5)
        ended = job.finish()
    assert ended.code == 0, ended.said
    assert sorted(ended.reports) == [0, 1, 2, 3]
    assert {(report.error, report.wrong) for report in ended.reports.values()} == {("", "")}
    assert len({report.steps for report in ended.reports.values()}) == 1
