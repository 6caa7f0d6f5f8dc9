"""How a driver waits on the control link: awake for a while, then asleep, and by its wake in either."""

from __future__ import annotations

import time

import pytest

from hvdlite.dataplane.shm import spin_ns
from hvdlite.rendezvous.door import Door
from hvdlite.runtime.unixlink import UnixLink
from hvdlite.runtime.wake import Wake
from hvdlite.settings import Settings
from tests.unit.links import LEFT, SESSION, next_from, soon

_MINUTE_US = 60e6


def test_only_ranks_with_cores_of_their_own_spin_unless_a_setting_says_so() -> None:
    assert spin_ns(Settings(), ranks=2, cores=2) > 0
    assert spin_ns(Settings(), ranks=3, cores=2) == 0
    assert spin_ns(Settings(spin=7), ranks=3, cores=2) == 7000
    assert spin_ns(Settings(spin=0), ranks=2, cores=2) == 0


@pytest.mark.parametrize("spin_us", [0, _MINUTE_US])
def test_a_driver_sees_messages_and_its_wake_whether_or_not_it_spins(spin_us: float) -> None:
    with Door(b"token") as door:
        leaf = UnixLink.dial(door.address, b"token", SESSION, Settings(rank=1, size=2, spin=spin_us), soon())
        root = UnixLink.accept(door, SESSION, Settings(rank=0, size=2), soon())
    wake = Wake()
    began = time.monotonic()
    wake.set()
    leaf.inbox.sleep_as_driver(None, wake)
    root.send(LEFT)
    leaf.inbox.sleep_as_driver(None, wake)
    assert time.monotonic() - began < 10
    assert next_from(leaf) == (0, LEFT)
    for each in (leaf, root, wake):
        each.close()


def test_a_driver_that_has_spun_in_vain_sleeps_until_its_time_is_over() -> None:
    with Door(b"token") as door:
        leaf = UnixLink.dial(door.address, b"token", SESSION, Settings(rank=1, size=2, spin=1000), soon())
        root = UnixLink.accept(door, SESSION, Settings(rank=0, size=2), soon())
    wake = Wake()
    began, worked = time.monotonic(), time.thread_time()
    leaf.inbox.sleep_as_driver(500, wake)
    assert time.monotonic() - began >= 0.4
    assert time.thread_time() - worked < 0.25
    for each in (leaf, root, wake):
        each.close()
