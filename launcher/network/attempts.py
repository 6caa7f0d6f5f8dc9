"""The report when hosts do not reach each other: who dialled which address, with which result, and what to do.

::

    node2 is not reached by all other hosts:
        10.0.0.2 (eth0)      reached by node1; not by node3: no answer within 2 s
        192.168.7.2 (eth1)   not by node1, node3: connection refused
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hvdlite.errors import LaunchError

from .candidates import Candidate

DIAL_S: Final = 2.0  # for one attempt; a lost SYN is sent again after 1 s
PROBLEMS: Final = {  # words for them, in the words of the report
    "refused": "connection refused",
    "silent": f"no answer within {DIAL_S:g} s",
    "narrow": "small packets pass, large ones vanish",
    "no route": "no route to it",
    "stranger": "something else answers there",
    "other host": "{detail} answers there",
    "not listening": "listening on it failed: {detail}",
    "failed": "{detail}",
}
_MAX_NAMES: Final = 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of dialling ``candidate`` from ``dialler``: one of `PROBLEMS`, with ``detail``, or figures."""

    dialler: str
    candidate: Candidate
    problem: str = ""
    detail: str = ""
    rtt_us: float | None = None
    mb_per_s: float | None = None

    @property
    def reason(self) -> str:
        """The problem in words."""
        return PROBLEMS[self.problem].format(detail=self.detail)


class HostsUnreached(LaunchError):
    """No address of some ``hosts`` is reached by all others that need it.

    ``details`` are lines that say who reached whom, ``advice`` is what to do, and ``report`` has both.
    """

    def __init__(self, attempts: Sequence[Attempt], ports: range | None) -> None:
        hosts = list(dict.fromkeys(attempt.candidate.host for attempt in attempts))
        super().__init__(f"the hosts do not reach each other: no address of {_some(hosts)} works for all others.")
        self.hosts = hosts
        self.details = list(describe_attempts(attempts))
        self.advice = list(_advice(attempts, ports))
        self.report = [*self.details, "What to do:", *(f"    {sentence}" for sentence in self.advice)]


def describe_attempts(attempts: Sequence[Attempt]) -> Iterator[str]:
    """The lines of the report, one paragraph for each host that was dialled."""
    for host in dict.fromkeys(attempt.candidate.host for attempt in attempts):
        yield f"{host} is not reached by all other hosts:"
        tried = list(dict.fromkeys(attempt.candidate for attempt in attempts if attempt.candidate.host == host))
        width = max(len(str(one)) for one in tried)
        for one in tried:
            outcomes = [attempt for attempt in attempts if attempt.candidate == one]
            yield f"    {one!s:<{width}}   {_outcome(outcomes)}"


def _outcome(attempts: Sequence[Attempt]) -> str:
    diallers_by_reason: dict[str, list[str]] = {}
    for attempt in attempts:
        if attempt.problem:
            diallers_by_reason.setdefault(attempt.reason, []).append(attempt.dialler)
    parts = [f"not by {_some(diallers)}: {reason}" for reason, diallers in diallers_by_reason.items()]
    if reached := [attempt.dialler for attempt in attempts if not attempt.problem]:
        parts.insert(0, f"reached by {_some(reached)}")
    return "; ".join(parts)


def _advice(attempts: Sequence[Attempt], ports: range | None) -> Iterator[str]:
    problems = {attempt.problem for attempt in attempts}
    if problems & {"refused", "silent", "no route"}:
        if ports:
            yield f"Let the hosts connect to each other's TCP ports {ports[0]}-{ports[-1]}."
        else:
            yield "If a firewall lets only some ports through, name them: --port-range 40000-40100."
    if "other host" in problems or "stranger" in problems:
        yield "Give every host an address of its own; an address above belongs to another machine too."
    if "narrow" in problems:
        yield "Set the MTU of the interfaces to what the network carries: ip link set dev eth0 mtu 1500."
    if "not listening" in problems:
        yield "Free the ports that are in use there, or choose others with --port-range."
    yield "If another network joins all hosts, check that it is up everywhere and name it: --network-interface eth1."
    yield "Where the names differ from host to host, name its addresses: --network-interface 10.0.0.0/8."


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:_MAX_NAMES])} and {rest} more"
