"""The choice of addresses, with hosts that are dictionaries: who is asked what, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hvdlite.launcher.network.attempts import HostsUnreached
from hvdlite.launcher.network.connect_test import choose_addresses, pairs
from hvdlite.launcher.stream.questions import Dial, Listen, Network, Question, Unlisten

Outcome = dict[str, Any]
REACHED: Outcome = {"rtt_us": 50.0}
SILENT: Outcome = {"problem": "silent"}


class Hosts:
    """Agents of hosts with one address on each of ``nets``; ``dialled`` says what comes of dialling an address."""

    def __init__(
        self,
        names: str,
        dialled: Callable[[str, str], Outcome] = lambda dialler, address: REACHED,
        *,
        nets: tuple[str, ...] = ("10.1.0", "10.2.0"),
        machines: Mapping[str, str] | None = None,
        deaf: Mapping[str, str] | None = None,
    ) -> None:
        self.names, self._dialled, self._nets = names.split(), dialled, nets
        self._machines, self._deaf = machines or {}, deaf or {}
        self.asked: list[str] = []
        self.dials: list[tuple[str, str]] = []

    def ask(self, what: Mapping[str, Question], timeout_s: float = 1.0) -> dict[str, Any]:
        kinds = {host: type(question).__name__.lower() for host, question in what.items()}
        self.asked += set(kinds.values())
        return {host: getattr(self, kinds[host])(host, question) for host, question in what.items()}

    def network(self, host: str, question: Network) -> dict[str, Any]:
        machine = self._machines.get(host, host)
        number = self.names.index(machine) + 1
        facts = dict(is_up=True, is_loopback=False, is_virtual=False, mtu=1500)
        rows = [
            {"name": f"eth{nic}", "addresses": [f"{net}.{number}/24"], "speed_mbps": 1000 - nic, **facts}
            for nic, net in enumerate(self._nets)
        ]
        return {"network": machine, "interfaces": rows}

    def listen(self, host: str, question: Listen) -> dict[str, Any]:
        problems = {one: why for one, why in self._deaf.items() if one in question.addresses}
        return {"ports": {one: 4000 for one in question.addresses if one not in problems}, "problems": problems}

    def dial(self, host: str, question: Dial) -> dict[str, Any]:
        addresses = [target.address for target in question.targets]
        self.dials += [(host, address) for address in addresses]
        return {"results": [self._dialled(host, address) for address in addresses]}

    def unlisten(self, host: str, question: Unlisten) -> dict[str, Any]:
        return {}

    def choose(self, **options: Any) -> dict[str, str | None]:
        chosen = choose_addresses(self.ask, self.names, **options)
        return {host: one and one.address for host, one in chosen.items()}


def test_the_best_candidates_are_tried_alone_and_that_is_all_if_they_work() -> None:
    hosts = Hosts("a b c")
    assert hosts.choose() == {"a": "10.1.0.1", "b": "10.1.0.2", "c": "10.1.0.3"}
    assert hosts.asked == ["network", "listen", "dial", "unlisten"]
    assert len(hosts.dials) == 6
    assert all(address.startswith("10.1.") for _, address in hosts.dials)


def test_only_the_host_that_one_other_does_not_reach_gets_another_address() -> None:
    hosts = Hosts("a b c", lambda dialler, address: SILENT if (dialler, address) == ("c", "10.1.0.2") else REACHED)
    assert hosts.choose() == {"a": "10.1.0.1", "b": "10.2.0.2", "c": "10.1.0.3"}
    assert hosts.dials[6:] == [("a", "10.2.0.2"), ("c", "10.2.0.2")]


def test_an_address_that_cannot_be_listened_on_is_not_dialled() -> None:
    hosts = Hosts("a b", deaf={"10.1.0.2": "Address already in use"})
    assert hosts.choose() == {"a": "10.1.0.1", "b": "10.2.0.2"}
    assert ("a", "10.1.0.2") not in hosts.dials


def test_one_machine_under_two_names_needs_no_network() -> None:
    hosts = Hosts("a alias", machines={"alias": "a"})
    assert hosts.choose() == {"a": None, "alias": None}
    assert hosts.asked == ["network"]


def test_two_names_of_one_machine_get_one_address() -> None:
    hosts = Hosts("a b alias", machines={"alias": "a"})
    assert hosts.choose() == {"a": "10.1.0.1", "b": "10.1.0.2", "alias": "10.1.0.1"}


def test_when_nothing_works_the_report_says_who_reached_whom_and_what_to_do() -> None:
    def dialled(dialler: str, address: str) -> Outcome:
        if address == "10.1.0.2":
            return SILENT if dialler == "c" else REACHED
        return {"problem": "other host", "host": 2} if address == "10.2.0.2" else REACHED

    hosts = Hosts("a b c", dialled)
    with pytest.raises(HostsUnreached, match="no address of b works for all others") as caught:
        hosts.choose()
    assert caught.value.report[:3] == [
        "b is not reached by all other hosts:",
        "    10.1.0.2 (eth0)   reached by a; not by c: no answer within 2 s",
        "    10.2.0.2 (eth1)   not by a, c: c answers there",
    ]
    advice = "\n".join(caught.value.report[3:])
    assert "--port-range" in advice
    assert "--network-interface" in advice
    assert "an address of its own" in advice
    assert hosts.asked[-1] == "unlisten"


def test_the_report_names_the_ports_that_must_be_open() -> None:
    hosts = Hosts("a b", lambda dialler, address: {"problem": "refused"}, nets=("10.1.0",))
    with pytest.raises(HostsUnreached, match="no address of a, b works") as caught:
        hosts.choose(ports=range(40000, 40101))
    report = "\n".join(caught.value.report)
    assert "10.1.0.1 (eth0)   not by b: connection refused" in report
    assert "TCP ports 40000-40100" in report


def test_many_hosts_are_dialled_by_their_neighbours_and_the_first_by_all() -> None:
    names = [f"n{number}" for number in range(40)]
    diallers = pairs(names)
    assert diallers["n0"] == tuple(names[1:])
    assert diallers["n1"] == ("n0", "n2")
    assert diallers["n39"] == ("n38", "n0")
    assert sum(map(len, diallers.values())) == 39 * 3
    few = pairs(names[:16])
    assert all(set(few[host]) == set(names[:16]) - {host} for host in names[:16])


def test_a_long_list_of_hosts_is_cut_in_the_report() -> None:
    names = " ".join(f"n{number}" for number in range(12))
    hosts = Hosts(names, lambda dialler, address: SILENT if address == "10.1.0.3" else REACHED, nets=("10.1.0",))
    with pytest.raises(HostsUnreached) as caught:
        hosts.choose()
    assert caught.value.report[1] == "    10.1.0.3 (eth0)   not by n0, n1, n3, n4 and 7 more: no answer within 2 s"
