"""Checks agents' answers in a connect test: they run on other machines, and may send anything.

Functions raise ValueError that says what is wrong with an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..agents.fields import field, figure, shown
from .attempts import PROBLEMS, Attempt
from .candidates import Candidate

_MAX_PORT: Final = 65535


class Listening(NamedTuple):
    """The ports on which a host listens, and why it could not, by address."""

    ports: dict[str, int]
    problems: dict[str, str]


def parse_listening(answer: Any, addresses: Sequence[str]) -> Listening:
    """The answer to ``listen`` on ``addresses``, each of which has a port or a problem."""
    ports, problems = field(answer, "ports", dict), field(answer, "problems", dict)
    listening = Listening({}, {})
    for address in addresses:
        if address in problems:
            listening.problems[address] = shown(problems[address])
        elif type(port := ports.get(address)) is int and 0 < port <= _MAX_PORT:
            listening.ports[address] = port
        else:
            raise ValueError(f"the agent does not report on which port of {address} it listens")
    return listening


def parse_attempts(answer: Any, dialler: str, targets: Sequence[Candidate], hosts: Sequence[str]) -> list[Attempt]:
    """The answer of ``dialler`` to ``dial``: a result for each target. ``hosts`` are those of the test by number."""
    results = field(answer, "results", list)
    if len(results) != len(targets):
        raise ValueError(f"the agent dialled {len(targets)} addresses and reports {len(results)}")
    return [_attempt(result, dialler, target, hosts) for result, target in zip(results, targets, strict=True)]


def _attempt(result: Any, dialler: str, target: Candidate, hosts: Sequence[str]) -> Attempt:
    if not isinstance(result, Mapping):
        raise ValueError("the agent reports no result for an address")
    if "problem" not in result:
        speed = None if result.get("mb_per_s") is None else figure(result, "mb_per_s")
        return Attempt(dialler, target, rtt_us=figure(result, "rtt_us"), mb_per_s=speed)
    problem, detail = field(result, "problem", str), shown(result.get("detail", ""))
    if problem not in PROBLEMS:
        raise ValueError(f"the agent reports an unknown problem: {shown(problem)}")
    if problem == "other host":
        number = field(result, "host", int)
        if not 0 <= number < len(hosts):
            raise ValueError(f"the agent reports host number {number}, which does not exist")
        detail = hosts[number]
    return Attempt(dialler, target, problem, detail=detail)
