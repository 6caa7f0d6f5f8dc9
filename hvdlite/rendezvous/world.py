"""The first exchange of all ranks of a job: where each of them is, and whether they match."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from hvdlite import native
from hvdlite.errors import HorovodInternalError
from hvdlite.host.hostid import kernel_host_id, network_namespace
from hvdlite.log import logger
from hvdlite.members.membership import Host, Membership
from hvdlite.members.ranges import shortened
from hvdlite.rendezvous.across_hosts import own_address
from hvdlite.rendezvous.client import Exchanges, Meeting
from hvdlite.settings import Settings, Start
from hvdlite.version import __version__

_MOST_CHARACTERS: Final = 500  # of a reason


class World(NamedTuple):
    """The result of the exchange.

    ``address`` is where other hosts reach this rank; empty if unknown. ``check_parameters`` is the setting on which
    ranks have agreed.
    """

    membership: Membership
    address: str
    check_parameters: str


def meet_world(
    start: Start, options: Settings, meeting: Meeting, exchange: Exchanges, without_nccl: bool = False
) -> World:
    """Forms the world of the next epoch. Raises HorovodInternalError on all ranks if some do not match.

    ``without_nccl`` is true if this rank has GPUs, but no NCCL.
    """
    offers = exchange(
        {
            "version": __version__,
            "host": start.hostname or socket.gethostname(),
            "hostid": start.hostid or (kernel_host_id() if start.size > 1 else ""),
            "network": network_namespace() if start.size > 1 else 0,
            "reach": meeting.reach,
            "plane": options.plane,
            "gpu_plane": options.gpu_plane,
            "check_parameters": options.check_parameters,
            "without_native": native.absence(),
            "without_nccl": without_nccl,
        }
    )
    _refuse_unlike("versions of hvdlite", [offer["version"] for offer in offers], "Install the same everywhere")
    _refuse_unlike("values of HVDLITE_PLANE", [offer["plane"] for offer in offers], "Set it alike on all ranks")
    _refuse_unlike("values of HVDLITE_GPU_PLANE", [offer["gpu_plane"] for offer in offers], "Set it alike on all ranks")
    host_ids = [offer["hostid"] for offer in offers]
    _refuse_namespaces(host_ids, [offer["network"] for offer in offers])
    if start.rank == 0 and options.plane != "zmq":
        _warn_of_absences([offer["without_native"] for offer in offers])
    membership = Membership(
        start.rank,
        tuple(range(len(offers))),
        tuple(
            Host(offer["hostid"], offer["host"], not offer["without_native"], not offer["without_nccl"])
            for offer in offers
        ),
        exchange.epoch,
        meeting.job.key("world"),
    )
    address = options.address or own_address(start.rank, host_ids, [offer["reach"] for offer in offers])
    return World(membership, address, _agreed_check(start.rank, [offer["check_parameters"] for offer in offers]))


def _refuse_unlike(what: str, of_ranks: Sequence[str], remedy: str) -> None:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(of_ranks):
        ranks.setdefault(value, []).append(rank)
    if len(ranks) > 1:
        found = "; ".join(f"{value} on rank(s) {shortened(having)}" for value, having in ranks.items())
        raise HorovodInternalError(f"ranks have different {what}: {found}. {remedy}.")


def _refuse_namespaces(host_ids: Sequence[str], networks: Sequence[int]) -> None:
    firsts: dict[str, int] = {}
    for rank, host_id in enumerate(host_ids):
        first = firsts.setdefault(host_id, rank)
        if networks[first] != networks[rank]:
            raise HorovodInternalError(
                f"ranks {first} and {rank} are on one host and in different network namespaces, between "
                "which they cannot talk. Start all ranks of a host in one, or give the ranks of each an HVDLITE_HOSTID "
                "and an HVDLITE_ADDRESS of its own"
            )


def _warn_of_absences(reasons: Sequence[str]) -> None:
    """Warns which ranks lack the native library, and of the cost. ``reasons`` is empty for ranks that have it."""
    if lacking := [rank for rank, reason in enumerate(reasons) if reason]:
        _warn(
            f"rank(s) {shortened(lacking)} cannot load hvdlite's native library, so every group with one of "
            "them exchanges through ZeroMQ in Python, which is three to ten times slower. "
            f"Rank {lacking[0]} reports: {str(reasons[lacking[0]])[:_MOST_CHARACTERS]}"
        )


@cache
def _warn(text: str) -> None:
    """Logs a warning once per process, since ranks may meet in many epochs."""
    logger.warning("%s", text)


def _agreed_check(rank: int, wanted: Sequence[str]) -> str:
    """Returns the setting for all ranks: off if it is on one, since all must take part; else error if one wants it."""
    if "0" not in wanted:
        return "error" if "error" in wanted else "1"
    if any(each != "0" for each in wanted) and rank == 0:
        unwilling = shortened(rank for rank, each in enumerate(wanted) if each == "0")
        logger.warning(
            "HVDLITE_CHECK_PARAMETERS is off on rank(s) %s only, so no rank compares its parameters with others; set "
            "it alike on all ranks",
            unwilling,
        )
    return "0"
