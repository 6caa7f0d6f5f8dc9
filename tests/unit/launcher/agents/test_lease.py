"""Leases: who is sent one when, and who is given up."""

from __future__ import annotations

from typing import Any, cast

from hvdlite.launcher.agents.lease import LEASE_S, SILENCE_S, Lease
from hvdlite.launcher.agents.link import AgentLink, Clock
from hvdlite.launcher.stream.messages import Lease as Grant


class Agent:
    """The part of a link that a lease uses."""

    def __init__(self) -> None:
        self.received_at, self.is_over = 0.0, False
        self.granted: list[float | None] = []

    def send(self, message: Grant) -> None:
        self.granted.append(message.for_s)


def lease_of(*agents: Agent) -> Lease:
    return Lease(cast(list[AgentLink], agents), 0.0)


def run(lease: Lease, begin: float, end: float) -> list[Any]:
    """Ticks ten times a second; what was given up."""
    return [link for tenth in range(int(begin * 10), int(end * 10)) for link in lease.tick(tenth / 10)]


def test_a_lease_is_renewed_every_second() -> None:
    agent = Agent()
    lease = lease_of(agent)
    assert run(lease, 0, 3) == []
    assert agent.granted == [LEASE_S] * 3


def test_a_silent_agent_is_given_up_once_and_sent_nothing_more() -> None:
    silent, loud = Agent(), Agent()
    lease = lease_of(silent, loud)
    loud.received_at = 100.0
    assert run(lease, 0, SILENCE_S) == []
    assert run(lease, SILENCE_S, SILENCE_S + 3) == [silent]
    assert len(loud.granted) > len(silent.granted)


def test_what_was_not_heard_while_hvdrun_was_stopped_counts_against_nobody() -> None:
    agent = Agent()
    lease = lease_of(agent)
    run(lease, 0, 1)
    assert run(lease, 60, 60 + SILENCE_S) == []
    assert run(lease, 60 + SILENCE_S, 60 + SILENCE_S + 1) == [agent]


def test_a_lease_without_end_is_granted_before_hvdrun_stops() -> None:
    agent = Agent()
    lease_of(agent).suspend(5.0)
    assert agent.granted == [None]


def test_without_agents_elsewhere_nothing_is_ever_due() -> None:
    assert lease_of().deadline is None


def test_an_agent_that_is_gone_is_sent_nothing() -> None:
    agent = Agent()
    lease = lease_of(agent)
    agent.is_over = True
    assert run(lease, 0, 20) == []
    assert agent.granted == []


def test_the_quickest_exchange_tells_the_clocks_apart() -> None:
    clock = Clock(0.0, float("inf"))
    clock.learn(sent=10.0, theirs=1011.0, received=14.0)
    assert (clock.translate(1011.0), clock.uncertain_s) == (12.0, 2.0)
    clock.learn(sent=20.0, theirs=1020.1, received=20.2)
    assert round(clock.translate(1020.1), 3) == 20.1
    clock.learn(sent=30.0, theirs=5000.0, received=33.0)
    assert round(clock.uncertain_s, 3) == 0.1
