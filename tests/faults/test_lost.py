"""Faults that end a job: every survivor names a rank that is really gone, in time, and nothing is left anywhere."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests.faults import acts
from tests.faults.training import training
from tests.faults.worker import EXIT_ERROR
from tests.harness.hosts import Network
from tests.hosts.endings import gone_within

KILLED = 128 + 9


@dataclass(frozen=True)
class Row:
    """An ``act``, after which each survivor must raise PeerLost for one of the ranks in ``lost_by_survivor[survivor]``.

    They do so within ``detect_s``. hvdrun returns ``code`` within ``end_s`` and its stderr has the ``words``.
    """

    name: str
    act: acts.Act
    lost_by_survivor: dict[int, set[int]]
    code: int
    words: str
    detect_s: float = 1.0
    end_s: float = 8.0
    hosts: str = "a:2,b:2"
    length: int = 4 << 20


def all_but(*lost: int) -> dict[int, set[int]]:
    return {survivor: set(lost) for survivor in {0, 1, 2, 3} - set(lost)}


PARTED = {0: {2, 3}, 1: {2, 3}, 2: {0, 1}, 3: {0, 1}}
LOST_3 = {0: {3}, 1: {3}, 2: {3}}
ROWS = [
    Row("a rank is killed", acts.kill(2), all_but(2), KILLED, "rank 2 on b was ended by signal 9", length=64 << 20),
    Row("a rank beside hvdrun is killed", acts.kill(1), all_but(1), KILLED, "rank 1 on a was ended by signal 9"),
    Row("the root is killed", acts.kill(0), all_but(0), KILLED, "rank 0 on a was ended by signal 9", length=64 << 20),
    Row("the root is killed in negotiation", acts.kill_in_negotiation(0, 3), all_but(0), KILLED,
        "rank 0 on a was ended by signal 9", detect_s=1.5),
    Row("two ranks are killed", acts.kill(3, 1), all_but(1, 3), KILLED, "was ended by signal 9"),
    Row("all ranks of a host are killed", acts.kill(2, 3), all_but(2, 3), KILLED, "on b was ended by signal 9"),
    Row("a rank is stopped", acts.stop(2), all_but(2), EXIT_ERROR, "hvdrun: rank 2 on b was lost", 4.0, 12.0),
    Row("the root is stopped", acts.stop(0), all_but(0), EXIT_ERROR, "hvdrun: rank 0 on a was lost", 4.0, 12.0),
    Row("only ssh reaches b", acts.part("a", "b", spares_ssh=True), PARTED, EXIT_ERROR, "was lost", 5.0, 12.0),
    Row("nothing reaches b", acts.part("a", "b"), {0: {2, 3}, 1: {2, 3}}, EXIT_ERROR, "on b was lost", 5.0, 14.0),
    Row("nothing reaches c", acts.part("ab", "c"), LOST_3, EXIT_ERROR, "rank 3 on c was lost",
        5.0, 14.0, hosts="a:2,b:1,c:1"),
    Row("b hears nothing", acts.deafen("b", "a"), PARTED, EXIT_ERROR, "was lost", 5.0, 12.0),
    Row("a hears nothing", acts.deafen("a", "b"), PARTED, EXIT_ERROR, "was lost", 5.0, 12.0),
]  # fmt: skip
FAST = {"a rank is killed", "the root is killed in negotiation", "a rank is stopped", "only ssh reaches b"}


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=() if row.name in FAST else pytest.mark.faults) for row in ROWS]
)
def test_the_survivors_name_who_is_gone(network: Network, row: Row) -> None:
    with training(network, row.hosts, length=row.length) as job:
        begun = time.monotonic()
        with row.act(job):
            ended = job.end(row.end_s)
    assert ended.code == row.code, ended.said
    assert row.words in ended.said
    for survivor, lost in row.lost_by_survivor.items():
        report = ended.reports[survivor]
        assert (report.error, report.wrong) == ("PeerLost", ""), report
        assert report.lost in lost, report
        assert report.at - begun < row.detect_s, report
    assert gone_within(10.0, network, besides="sshd") == []
    for host in network:
        for session in host.processes("sshd: "):  # those of a cut network wait for answers that were lost
            session.kill()
