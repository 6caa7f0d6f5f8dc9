"""A rank that is slow and not dead: the job goes on, and its root says for whom it waits."""

from __future__ import annotations

import pytest

from tests.faults import acts
from tests.faults.training import training
from tests.harness.hosts import Network

_SAID = " makes all others wait, "


@pytest.mark.alone  # where all are slow, nobody is
def test_a_rank_with_a_tenth_of_a_core_is_named(network: Network) -> None:
    """After 20 steps, as tests/unit/negotiation/delays/test_straggler.py shows, where no other reason makes a wait."""
    act = acts.starve(3, 10)
    if reason := acts.missing_for(act):
        pytest.skip(reason)
    with training(network, "a:2,b:2", length=8 << 20) as job:
        job.wait_for_steps(20)
        with act(job):
            job.wait_for_words(_SAID)
        ended = job.finish()
    assert ended.code == 0, ended.said
    assert sorted(ended.reports) == [0, 1, 2, 3]
    assert {(report.error, report.wrong) for report in ended.reports.values()} == {("", "")}
    warnings = [line for line in ended.said.splitlines() if _SAID in line]
    assert len(warnings) == 1, ended.said
    assert f"rank 3 on b{_SAID}" in warnings[0]
