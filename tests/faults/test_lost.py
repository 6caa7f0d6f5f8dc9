"""Faults that end a job: every survivor names a rank that is really gone, in time, and nothing is left anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.faults import acts
from tests.faults.training import training
from tests.faults.worker import EXIT_ERROR
from tests.harness.hosts import Network
from tests.harness.patience import NEVER_SILENT
from tests.hosts.endings import still_on

KILLED = 128 + 9


@dataclass(frozen=True)
class Row:
    """An ``act``, after which each survivor must raise PeerLost for one of the ranks in ``lost_by_survivor[survivor]``.

    hvdrun returns ``code`` and its stderr has the ``words``. Unless they learn it ``by_silence``, silence counts for
    nothing: the survivors hear of it from the connections that end.
    """

    name: str
    act: acts.Act
    lost_by_survivor: dict[int, set[int]]
    code: int
    words: str
    by_silence: bool = False
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
        "rank 0 on a was ended by signal 9"),
    Row("two ranks are killed", acts.kill(3, 1), all_but(1, 3), KILLED, "was ended by signal 9"),
    Row("all ranks of a host are killed", acts.kill(2, 3), all_but(2, 3), KILLED, "on b was ended by signal 9"),
    Row("a rank is stopped", acts.stop(2), all_but(2), EXIT_ERROR, "hvdrun: rank 2 on b was lost", by_silence=True),
    Row("the root is stopped", acts.stop(0), all_but(0), EXIT_ERROR, "hvdrun: rank 0 on a was lost", by_silence=True),
    Row("only ssh reaches b", acts.part("a", "b", spares_ssh=True), PARTED, EXIT_ERROR, "was lost", by_silence=True),
    Row("nothing reaches b", acts.part("a", "b"), {0: {2, 3}, 1: {2, 3}}, EXIT_ERROR, "on b was lost", by_silence=True),
    Row("nothing reaches c", acts.part("ab", "c"), LOST_3, EXIT_ERROR, "rank 3 on c was lost",
        by_silence=True, hosts="a:2,b:1,c:1"),
    Row("b hears nothing", acts.deafen("b", "a"), PARTED, EXIT_ERROR, "was lost", by_silence=True),
    Row("a hears nothing", acts.deafen("a", "b"), PARTED, EXIT_ERROR, "was lost", by_silence=True),
]  # fmt: skip
FAST = {"a rank is killed", "the root is killed in negotiation", "a rank is stopped", "only ssh reaches b"}


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=() if row.name in FAST else pytest.mark.faults) for row in ROWS]
)
def test_the_survivors_name_who_is_gone(network: Network, row: Row) -> None:
    environment = {} if row.by_silence else NEVER_SILENT
    with training(network, row.hosts, length=row.length, environment=environment) as job, row.act(job):
        ended = job.end()
    assert ended.code == row.code, ended.said
    assert row.words in ended.said
    for survivor, lost in row.lost_by_survivor.items():
        report = ended.reports[survivor]
        assert (report.error, report.wrong) == ("PeerLost", ""), report
        assert report.lost in lost, report
    assert still_on(network, besides="sshd") == []
    for host in network:
        for session in host.processes("sshd: "):  # those of a cut network wait for answers that were lost
            session.kill()
