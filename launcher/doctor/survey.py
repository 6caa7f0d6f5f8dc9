"""Surveys hosts for ``hvdrun doctor``: facts about each, and the network between each two.

A host that fails to answer gets a problem and is left out of the rest of the survey.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from hvdlite.errors import CannotStart

from ..network.attempts import Attempt, HostsUnreached
from ..network.candidates import Candidate, Network
from ..network.connect_test import Ask, choose_addresses, close_probe, dial, open_probe, pairs
from ..stream import questions
from ..stream.fields import read
from .facts import parse_clock, parse_machine, parse_software

BULK_S: Final = 0.25  # of sending, for each pair and direction
_MACHINE_S: Final = 20.0  # nvidia-smi may take ten
_SOFTWARE_S: Final = 30.0
_Fact = TypeVar("_Fact")


@dataclass(slots=True)
class SurveyedHost:
    """One host. ``problem`` says why no rank can be started there; facts that are unknown then are empty.

    ``machine`` and ``software`` are what `machine.describe_machine` and `software.examine` say on that host.
    """

    name: str
    connect_s: float = 0.0
    problem: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    software: Mapping[str, Any] = field(default_factory=dict)
    clock_ahead_s: float = 0.0
    network: Network | None = None
    address: Candidate | None = None  # None also if all hosts are one machine

    @property
    def is_usable(self) -> bool:
        return not self.problem


@dataclass(slots=True)
class Survey:
    """All hosts in the user's order, and an attempt with figures for each pair of them that was measured."""

    hosts: dict[str, SurveyedHost]
    attempts: list[Attempt] = field(default_factory=list)
    network_problem: CannotStart | HostsUnreached | None = None

    @property
    def usable(self) -> list[str]:
        return [name for name, host in self.hosts.items() if host.is_usable]


def examine_hosts(ask: Ask, survey: Survey) -> None:
    """Asks every usable host for its facts."""
    for host, network in _ask(ask, questions.Network(), partial(read, Network), survey):
        host.network = network
    for host, machine in _ask(ask, questions.Machine(), parse_machine, survey, _MACHINE_S):
        host.machine = machine
    for host, software in _ask(ask, questions.Software(), parse_software, survey, _SOFTWARE_S):
        host.software = software
    for name in survey.usable:
        sent = time.time()
        for host, clock_s in _ask(ask, questions.Clock(), parse_clock, survey, hosts=[name]):
            host.clock_ahead_s = clock_s - (sent + time.time()) / 2


def examine_network(ask: Ask, survey: Survey, wanted: Sequence[str], ports: range | None) -> None:
    """Chooses addresses as a job would, and measures the pairs of hosts between them."""
    if len(survey.usable) < 2:
        return
    try:
        chosen = choose_addresses(ask, survey.usable, wanted=wanted, ports=ports)
        for name, candidate in chosen.items():
            survey.hosts[name].address = candidate
        distinct = {candidate.host: candidate for candidate in chosen.values() if candidate is not None}
        if distinct:
            survey.attempts = _measure(ask, distinct, ports)
    except (CannotStart, HostsUnreached) as error:
        survey.network_problem = error


def rounds(calls: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Sorts pairs into rounds in which no host takes part twice, so that connections are measured one at a time."""
    waiting = list(calls)
    while waiting:
        busy: set[str] = set()
        now, later = [], []
        for call in waiting:
            if busy.isdisjoint(call):
                now.append(call)
                busy.update(call)
            else:
                later.append(call)
        yield now
        waiting = later


def _measure(ask: Ask, addresses: Mapping[str, Candidate], ports: range | None) -> list[Attempt]:
    probe = open_probe(ask, {host: [one.address] for host, one in addresses.items()}, ports)
    calls = [(dialler, host) for host, diallers in pairs(probe.hosts).items() for dialler in diallers]
    try:
        return [
            attempt
            for together in rounds(calls)
            for attempt in dial(ask, probe, [(dialler, addresses[host]) for dialler, host in together], bulk_s=BULK_S)
        ]
    finally:
        close_probe(ask, probe)


def _ask(
    ask: Ask,
    what: questions.Question,
    parse: Callable[[Any], _Fact],
    survey: Survey,
    timeout_s: float = 10.0,
    hosts: Sequence[str] = (),
) -> Iterator[tuple[SurveyedHost, _Fact]]:
    """Asks the hosts, by default all usable ones, and returns their facts. Records the problem of a host without."""
    asked = [name for name in hosts or survey.usable if survey.hosts[name].is_usable]
    answers: Mapping[str, Any] | None = None
    while asked and answers is None:
        try:
            answers = ask(dict.fromkeys(asked, what), timeout_s)
        except CannotStart as error:
            survey.hosts[error.host].problem = error.reason
            asked.remove(error.host)
    for name, answer in (answers or {}).items():
        try:
            yield survey.hosts[name], parse(answer)
        except ValueError as error:
            survey.hosts[name].problem = f"{error}."
