"""Ranks the addresses of each host, as far as that is possible without sending a packet.

A *candidate* is an address on which a host might be dialled. Excluded are the loopback's, interfaces that are down,
IPv6 link-local addresses (they mean nothing without the dialler's own interface), and addresses that several hosts
have, such as those of ``docker0`` and ``virbr0``. The rest is ordered by what usually gives the fastest network that
works:

1. the user's order, if interfaces were named;
2. subnets in which every host has an address;
3. proper interfaces before bridges and tunnels, routable before self-assigned (169.254.0.0/16) addresses;
4. the speed of the interface, IPv4 before IPv6, the kernel's order.

Whether a candidate works is for `connect_test` to find out.
"""

import fnmatch
import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from hvdlite.errors import CannotStart

from ..stream.fields import Count, Short, Yes, each, record, short

LOOPBACK: Final = "127.0.0.1"
_MAX_INTERFACES: Final = 4096
_BAD_USAGE: Final = 2
_Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network


def _address(value: Any) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    return ipaddress.ip_interface(short(value))


class Interface(NamedTuple):
    """A network interface of a host: addresses with their prefixes, ``mtu`` in bytes, ``speed_mbps`` 0 if unknown."""

    name: Short
    addresses: Annotated[tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...], each(_address, _MAX_INTERFACES)]
    is_up: Yes
    is_loopback: Yes
    is_virtual: Yes
    mtu: Count
    speed_mbps: Count


class Network(NamedTuple):
    """An agent's answer: the interfaces, and the ``network``, which is equal for agents that see the same ones."""

    interfaces: Annotated[tuple[Interface, ...], each(record(Interface), _MAX_INTERFACES)]
    network: Short


class Candidate(NamedTuple):
    """An address on which ``host`` might be dialled."""

    host: str
    interface: str
    address: str
    subnet: _Subnet
    mtu: int
    speed_mbps: int
    is_virtual: bool

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


def rank_candidates(networks: Mapping[str, Network], wanted: Sequence[str] = ()) -> dict[str, tuple[Candidate, ...]]:
    """The candidates of each host, the most promising first.

    ``wanted`` are names (also ``eth*``), addresses or subnets (``10.0.0.0/8``); without it all interfaces are looked
    at. Raises CannotStart naming a host that has none of those, or no candidate at all, and what it does have.
    """
    found = {host: _candidates(host, network) for host, network in networks.items()}
    _check_names(wanted, found)
    owners = Counter(address for listed in found.values() for address in {one.address for one in listed})
    for host, listed in found.items():
        named = [one for one in listed if not wanted or _place_in(wanted, one) is not None]
        if wanted and not named:
            missing = " or ".join(wanted)
            raise CannotStart(host, f"it has no network interface {missing}; it has {_names(listed)}.", _BAD_USAGE)
        found[host] = [one for one in named if owners[one.address] == 1]
        if not found[host]:
            shared = f"other hosts have the same addresses: {_names(named)}"
            reason = shared if named else "it has no address but the loopback's"
            raise CannotStart(host, f"no other host can dial it: {reason}.")
    common = set.intersection(*({one.subnet for one in listed} for listed in found.values()))
    return {host: tuple(sorted(listed, key=lambda one: _merit(one, wanted, common))) for host, listed in found.items()}


def network_environment(candidate: Candidate | None, wanted: Sequence[str], base: Mapping[str, str]) -> dict[str, str]:
    """The variables that select the network of a host's ranks; without a candidate the job has one host.

    If the user named interfaces, NCCL and Horovod's Gloo get them too, as in Horovod, unless ``base`` sets them.
    """
    if candidate is None:
        return {"HVDLITE_ADDRESS": LOOPBACK}
    environment = {"HVDLITE_ADDRESS": candidate.address}
    for name in ("NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"):
        if wanted and name not in base:
            environment[name] = candidate.interface
    return environment


def _candidates(host: str, network: Network) -> list[Candidate]:
    return [
        Candidate(host, one.name, str(at.ip), at.network, one.mtu, one.speed_mbps, one.is_virtual)
        for one in network.interfaces
        if one.is_up and not one.is_loopback
        for at in one.addresses
        if not (at.version == 6 and at.ip.is_link_local)
    ]


def _check_names(wanted: Sequence[str], found: Mapping[str, Sequence[Candidate]]) -> None:
    for text in wanted:
        if not any(_place_in([text], one) is not None for listed in found.values() for one in listed):
            host, listed = next(iter(found.items()))
            reason = f"no host has a network interface {text}; {host} has {_names(listed)}."
            raise CannotStart(host, reason, _BAD_USAGE)


def _merit(one: Candidate, wanted: Sequence[str], common: set[_Subnet]) -> tuple[int | bool, ...]:
    return (
        _place_in(wanted, one) or 0,
        one.subnet not in common,
        one.is_virtual,
        one.subnet.is_link_local,
        -one.speed_mbps,
        one.subnet.version,
    )


def _place_in(wanted: Sequence[str], one: Candidate) -> int | None:
    """The index of the first of ``wanted`` that matches this candidate."""
    for place, text in enumerate(wanted):
        try:
            is_meant = ipaddress.ip_address(one.address) in ipaddress.ip_network(text, strict=False)
        except ValueError:
            is_meant = fnmatch.fnmatchcase(one.interface, text)
        if is_meant:
            return place
    return None


def _names(listed: Sequence[Candidate]) -> str:
    return ", ".join(f"{one.interface} {one.address}" for one in listed) or "none besides the loopback"
