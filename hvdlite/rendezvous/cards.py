"""What ranks tell each other in ``init()``, and what they agree about then."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

from hvdlite.errors import HorovodInternalError
from hvdlite.log import logger
from hvdlite.members.topology import Placement
from hvdlite.members.topology import group as group_by_host
from hvdlite.net.hostid import kernel_host_id, network_namespace
from hvdlite.rendezvous.client import ROUNDS_OF_INIT, Meeting, exchange
from hvdlite.settings import Settings
from hvdlite.spin import spin_us
from hvdlite.version import __version__

Swap = Callable[[Any], Sequence[Any]]
"""Gives all ranks' cards in rank order for this rank's."""


def card_of(settings: Settings, reach: str) -> dict[str, Any]:
    """What all ranks have to know of this one; ``reach`` is where others may call it."""
    return {
        "version": __version__,
        "host": settings.hostname or socket.gethostname(),
        "hostid": settings.hostid or (kernel_host_id() if settings.size > 1 else ""),
        "network": network_namespace() if settings.size > 1 else 0,
        "reach": reach,
        "check_parameters": settings.check_parameters,
    }


def placements(cards: Sequence[dict[str, Any]]) -> tuple[Placement, ...]:
    """Where the ranks are. Raises HorovodInternalError if those with these cards cannot work together."""
    versions = {card["version"] for card in cards}
    if len(versions) > 1:
        told = ", ".join(f"rank {rank} has {card['version']}" for rank, card in enumerate(cards))
        raise HorovodInternalError(f"ranks have different versions of hvdlite: {told}. Install the same everywhere.")
    networks: dict[str, tuple[int, int]] = {}
    for rank, card in enumerate(cards):
        first, network = networks.setdefault(card["hostid"], (rank, card["network"]))
        if network != card["network"]:
            raise HorovodInternalError(
                f"ranks {first} and {rank} are on one host and in different network namespaces, between "
                "which they cannot talk. Start all ranks of a host in one, or give the ranks of each an HVDLITE_HOSTID "
                "and an HVDLITE_ADDRESS of its own"
            )
    return group_by_host([card["hostid"] for card in cards])


def agreed_check(settings: Settings, wanted: Sequence[bool]) -> bool:
    """Whether ranks compare their parameters. All of them take part in that, so one that does not speaks for all."""
    if any(wanted) and not all(wanted) and settings.rank == 0:
        unwilling = ", ".join(str(rank) for rank, is_wanted in enumerate(wanted) if not is_wanted)
        logger.warning(
            "HVDLITE_CHECK_PARAMETERS is off on rank(s) %s only, so no rank compares its parameters with those of the "
            "others; set it alike on all ranks",
            unwilling,
        )
    return all(wanted)


def agreed_spin(settings: Settings, host_ids: Sequence[str], swap: Swap) -> float:
    """How long this rank spins, in µs. The first rank of each host measures it while the others wait for its answer."""
    own = [rank for rank, host_id in enumerate(host_ids) if host_id == host_ids[settings.rank]]
    measured = swap(spin_us(settings, len(own)) if own[0] == settings.rank and settings.size > 1 else 0.0)
    return settings.spin if settings.spin >= 0 else float(measured[own[0]])


def swapper(meeting: Meeting, settings: Settings, number: int, deadline: float) -> Swap:
    """How this rank swaps cards with the others in the ``number``-th session of the job."""
    if settings.size == 1:
        return lambda card: [card]
    rounds = itertools.count(number * ROUNDS_OF_INIT)

    def swap(card: Any) -> Sequence[Any]:
        return exchange(
            meeting,
            number=next(rounds),
            rank=settings.rank,
            size=settings.size,
            card=card,
            deadline=deadline,
        )

    return swap
