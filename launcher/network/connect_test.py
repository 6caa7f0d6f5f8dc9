"""Finds the address of each host on which the others really reach it.

The agents listen on all candidates (`network`) and dial each other: every host every other one, or with more than
`_ALL_PAIRS` hosts its neighbours in a ring and the first. The best candidate of every host is tried first, and usually
that is all: one round trip. The remaining candidates are tried only for hosts that some host did not reach, all at
once. So a network that drops packets costs two deadlines at most, and only if it looked better than those that work.

`choose_addresses` depends on nothing but what `Ask` returns: tests simulate hosts with dictionaries.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, NamedTuple, Protocol

from hvdlite.errors import CannotStart

from ..stream import questions
from ..stream.fields import Short, each, integer, mapping, number, one_of, optional, read, record, short
from .attempts import DIAL_S, PROBLEMS, Attempt, HostsUnreached
from .candidates import Candidate, Network, rank_candidates

_LIFETIME_S: Final = 120.0  # of listeners that nobody closes
_DIAL_PATIENCE_S: Final = 60.0  # for the answer about many targets, or about bandwidth on a slow network
_ALL_PAIRS: Final = 16


class Ask(Protocol):
    """Asks the agents of several hosts at once, as `agents.Agents.ask` does, and returns their answers by host.

    Raises CannotStart naming a host that does not answer in time, or whose answer is an error.
    """

    def __call__(self, what: Mapping[str, questions.Question], timeout_s: float = ...) -> Mapping[str, Any]: ...


class Listening(NamedTuple):
    """The answer to `Listen`: the ports on which a host listens, and why it could not, by address."""

    ports: Annotated[Mapping[str, int], mapping(integer(1, 65535))]
    problems: Annotated[Mapping[str, str], mapping(short)]


class Result(NamedTuple):
    """One of `PROBLEMS`, with a detail or the number of the host that answered; without a problem the figures."""

    problem: Annotated[str, one_of(("", *PROBLEMS))] = ""
    detail: Short = ""
    host: Annotated[int | None, optional(integer(0, 1 << 16))] = None
    rtt_us: Annotated[float | None, optional(number())] = None
    mb_per_s: Annotated[float | None, optional(number())] = None


class Dialled(NamedTuple):
    """The answer to `Dial`, in the order of its targets."""

    results: Annotated[tuple[Result, ...], each(record(Result), 1 << 16)]


class Probe(NamedTuple):
    """Listeners that are open, and how to dial them."""

    token: str
    hosts: tuple[str, ...]  # a host's number is its place here
    listening: Mapping[str, Listening]  # by host


def choose_addresses(
    ask: Ask, hosts: Sequence[str], *, wanted: Sequence[str] = (), ports: range | None = None
) -> dict[str, Candidate | None]:
    """The address to use for each host; None for all of them if they are one machine under several names.

    ``wanted`` are the interfaces that the user named, ``ports`` those that a firewall admits. Raises CannotStart
    for a host without a usable interface, and HostsUnreached with a report when no address of a host works.
    """
    networks = ask_for_networks(ask, hosts)
    first_named = {network.network: host for host, network in reversed(networks.items())}
    if len(first_named) == 1:
        return dict.fromkeys(hosts)
    candidates = rank_candidates({host: networks[host] for host in hosts if host in first_named.values()}, wanted)
    probe = open_probe(ask, {host: [one.address for one in listed] for host, listed in candidates.items()}, ports)
    try:
        chosen = _try_all(ask, probe, candidates, ports)
    finally:
        close_probe(ask, probe)
    return {host: chosen[first_named[networks[host].network]] for host in hosts}


def ask_for_networks(ask: Ask, hosts: Sequence[str]) -> dict[str, Network]:
    """Asks each host for its interfaces. Raises CannotStart for a host with an invalid answer."""
    networks = {}
    for host, answer in ask(dict.fromkeys(hosts, questions.Network())).items():
        with _blaming(host):
            networks[host] = read(Network, answer)
    return networks


def pairs(hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The diallers of each host, without itself."""
    if len(hosts) <= _ALL_PAIRS:
        return {host: tuple(other for other in hosts if other != host) for host in hosts}
    diallers = {}
    for place, host in enumerate(hosts):
        neighbours = (hosts[place - 1], hosts[(place + 1) % len(hosts)])
        diallers[host] = neighbours if place else tuple(hosts[1:])
    return diallers


def open_probe(ask: Ask, addresses: Mapping[str, Sequence[str]], ports: range | None) -> Probe:
    """Has each host listen on its ``addresses``. Raises CannotStart for a host with an invalid answer."""
    token, hosts = secrets.token_hex(32), tuple(addresses)
    limits = (ports[0], ports[-1]) if ports else None
    asked = {
        host: questions.Listen(token, number, tuple(addresses[host]), limits, _LIFETIME_S)
        for number, host in enumerate(hosts)
    }
    listening = {}
    for host, answer in ask(asked).items():
        with _blaming(host):
            listening[host] = found = read(Listening, answer)
            if lacking := [address for address in addresses[host] if address not in {**found.ports, **found.problems}]:
                raise ValueError(f"the agent does not report on which port of {lacking[0]} it listens")
    return Probe(token, hosts, listening)


def close_probe(ask: Ask, probe: Probe) -> None:
    """Stops the listeners."""
    ask(dict.fromkeys(probe.hosts, questions.Unlisten()))


def dial(ask: Ask, probe: Probe, calls: Sequence[tuple[str, Candidate]], *, bulk_s: float = 0.0) -> list[Attempt]:
    """Makes all ``calls`` at once, pairs of a dialler and a candidate of another host. Returns results in order.

    Raises CannotStart for a dialler with an invalid answer.
    """
    attempts: dict[tuple[str, Candidate], Attempt] = {}
    targets: dict[str, list[Candidate]] = {}
    for dialler, candidate in calls:
        if problem := probe.listening[candidate.host].problems.get(candidate.address):
            attempts[dialler, candidate] = Attempt(dialler, candidate, "not listening", detail=problem)
        else:
            targets.setdefault(dialler, []).append(candidate)
    asked = {
        dialler: questions.Dial(probe.token, tuple(_target(probe, one) for one in listed), DIAL_S, bulk_s)
        for dialler, listed in targets.items()
    }
    for dialler, answer in ask(asked, _DIAL_PATIENCE_S).items():
        with _blaming(dialler):
            results, listed = read(Dialled, answer).results, targets[dialler]
            if len(results) != len(listed):
                raise ValueError(f"the agent dialled {len(listed)} addresses and reports {len(results)}")
            for candidate, result in zip(listed, results, strict=True):
                attempts[dialler, candidate] = _attempt(dialler, candidate, result, probe.hosts)
    return [attempts[call] for call in calls]


@contextmanager
def _blaming(host: str) -> Iterator[None]:
    """Turns a ValueError about an answer of ``host`` into CannotStart."""
    try:
        yield
    except ValueError as error:
        raise CannotStart(host, f"{error}.") from None


def _attempt(dialler: str, candidate: Candidate, result: Result, hosts: Sequence[str]) -> Attempt:
    detail = result.detail
    if result.problem == "other host":
        if result.host is None or result.host >= len(hosts):
            raise ValueError(f"the agent reports host number {result.host}, which does not exist")
        detail = hosts[result.host]
    if not result.problem and result.rtt_us is None:
        raise ValueError("the agent reports neither a problem nor a round trip")
    return Attempt(dialler, candidate, result.problem, detail, result.rtt_us, result.mb_per_s)


def _target(probe: Probe, one: Candidate) -> questions.Target:
    return questions.Target(probe.hosts.index(one.host), one.address, probe.listening[one.host].ports[one.address])


def _try_all(
    ask: Ask, probe: Probe, candidates: Mapping[str, Sequence[Candidate]], ports: range | None
) -> dict[str, Candidate]:
    diallers = pairs(probe.hosts)
    chosen: dict[str, Candidate] = {}
    attempts: list[Attempt] = []
    for is_first in (True, False):
        tried = [
            one
            for host, listed in candidates.items()
            if host not in chosen
            for one in (listed[:1] if is_first else listed[1:])
        ]
        attempts += dial(ask, probe, [(dialler, one) for one in tried for dialler in diallers[one.host]])
        failed = {attempt.candidate for attempt in attempts if attempt.problem}
        for one in tried:
            if one not in failed:
                chosen.setdefault(one.host, one)
        if len(chosen) == len(candidates):
            return chosen
    raise HostsUnreached([attempt for attempt in attempts if attempt.candidate.host not in chosen], ports)
