"""Sessions one after the other: what one held is given back with its end, and not when the garbage is collected."""

from __future__ import annotations

import gc
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.errors import HorovodInternalError
from hvdlite.rendezvous.client import Exchanges, Meeting
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.world import meet_world
from hvdlite.scope import Scope
from hvdlite.settings import Settings, Start
from tests.harness import process_ranks

CYCLES = 20
TWO_HOSTS = {rank: {"HVDLITE_HOSTID": f"host {rank // 2}"} for rank in range(4)}


def descriptors() -> Counter[str]:
    """Counts the open descriptors of each kind."""
    found = Counter[str]()
    for name in os.listdir("/proc/self/fd"):
        if os.path.islink(path := f"/proc/self/fd/{name}"):
            found[os.readlink(path).split(":")[0]] += 1
    return found


def begin_and_end_often() -> dict[str, int]:
    gc.disable()
    before: Counter[str] = Counter()
    for cycle in range(CYCLES + 1):
        hvd.init()
        members = hvd.add_process_set([0, 1])
        hvd.allreduce(np.ones(5), name="x")
        hvd.remove_process_set(members)
        hvd.shutdown()
        if cycle == 0:
            before = descriptors()
    return dict(descriptors() - before)


@pytest.mark.parametrize(("count", "hosts"), [(3, {}), (4, TWO_HOSTS)], ids=["one host", "two hosts"])
def test_twenty_sessions_leave_no_descriptor(count: int, hosts: dict[int, dict[str, str]]) -> None:
    for outcome in process_ranks(count, begin_and_end_often, environ_by_rank=hosts):
        assert outcome.result() == {}


class _Told(Exchanges):
    """The offers of three ranks that differ only in their hosts and network namespaces."""

    def __init__(self, meeting: Meeting, hosts: str) -> None:
        super().__init__(meeting, 0, 3, Scope())
        self._hosts = hosts

    def __call__(self, offer: dict[str, Any]) -> list[Any]:
        return [
            {**offer, "hostid": host, "network": network} for host, network in zip(self._hosts, (1, 1, 2), strict=True)
        ]


def test_ranks_of_one_host_in_two_network_namespaces_are_refused_when_they_meet() -> None:
    meeting = Meeting(Job.create())
    with pytest.raises(HorovodInternalError, match="ranks 0 and 2 are on one host and in different network namespaces"):
        meet_world(Start(size=3), Settings(), meeting, _Told(meeting, "aaa"))
    world = meet_world(Start(size=3), Settings(), meeting, _Told(meeting, "aab"))
    assert len(world.membership.by_leader) == 2
