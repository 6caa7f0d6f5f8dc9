"""Groups whose ranks meet through a key-value store, such as PyTorch's.

What lies in the store is not trusted: its length is checked, and it is JSON.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from hvdlite import native
from hvdlite.errors import HorovodInternalError
from hvdlite.groups.choose import arena_part
from hvdlite.groups.connecting import Exchange
from hvdlite.groups.group import Group
from hvdlite.host.hostid import kernel_host_id
from hvdlite.members.membership import Host, Membership
from hvdlite.negotiation.messages import EndKind
from hvdlite.rendezvous.across_hosts import own_address
from hvdlite.scope import Scope
from hvdlite.settings import Settings, Start

_MOST_BYTES: Final = 1 << 20  # of an offer
_KEY_BYTES: Final = 32


class Store(Protocol):
    """Keys and values that all ranks of the group share. `get` waits for the key, and raises if it does not come."""

    def set(self, key: str, value: str, /) -> object: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...


def open_over_store(store: Store, ranks: Sequence[int], rank: int, server: str, limit_s: float) -> Group:
    """Opens the group of ``ranks``, numbers in the job, as its member ``rank``, counted from 0.

    No group of other ranks may use ``store``, or the prefix that it stands for. ``server`` is the address of the
    store's host, or empty. The group's key is derived from that of the job; if there is none, rank 0 makes one, which
    the others read from the store. Raises HorovodInternalError on all ranks if they cannot connect within ``limit_s``.
    """
    start, options = Start.read(), Settings.read()
    scope = Scope.of(limit_s)
    # The groups that a program makes one after the other may have the same prefix.
    exchange = _exchange(store, f"{store.add(f'groups/{rank}', 1)}/", len(ranks), rank)
    offers = exchange(
        {
            "host": start.hostname or socket.gethostname(),
            "hostid": start.hostid or kernel_host_id(),
            "reach": server,
            "without_native": native.absence(),
            "salt": secrets.token_hex(_KEY_BYTES),
        }
    )
    try:
        salt = bytes.fromhex(offers[0]["salt"])
        hosts = tuple(Host(str(each["hostid"]), str(each["host"]), not each["without_native"]) for each in offers)
        reaches = [str(each["reach"]) for each in offers]
    except (KeyError, TypeError, ValueError):
        odd = next((each for each, offer in enumerate(offers) if not _is_offer(offer)), 0)
        raise HorovodInternalError(f"what rank {odd} has put into the store is no offer") from None
    if len(salt) != _KEY_BYTES:
        raise HorovodInternalError(f"the key of rank 0 in the store has {len(salt)} bytes, not {_KEY_BYTES}")
    key = hmac.digest(bytes.fromhex(start.secret), salt, hashlib.sha256) if start.secret else salt
    membership = Membership(rank, tuple(ranks), hosts, 0, key)
    if not options.address and not membership.is_one_host:
        options = replace(options, address=own_address(rank, [host.id for host in hosts], reaches))
    return Group.open(membership, options, exchange, scope, arena_part(membership, options))


def leave_group(group: Group, limit_s: float) -> None:
    """Leaves ``group``. What all ranks have agreed on still runs for ``limit_s``; all else fails, on all ranks."""
    group.end(EndKind.LEFT, Scope.of(limit_s))


def exit_group(group: Group, limit_s: float) -> None:
    """Ends the part of this process, which is about to exit, in ``group``."""
    group.end(EndKind.EXITED, Scope.of(limit_s))


def _is_offer(offer: Any) -> bool:
    return isinstance(offer, dict) and {"salt", "hostid", "host", "without_native", "reach"} <= offer.keys()


def _exchange(store: Store, prefix: str, size: int, rank: int) -> Exchange:
    rounds = itertools.count()

    def exchange(offer: Any) -> list[Any]:
        place = f"{prefix}{next(rounds)}/"
        store.set(f"{place}{rank}", json.dumps(offer))
        return [_read(store, f"{place}{other}", other) for other in range(size)]

    return exchange


def _read(store: Store, key: str, rank: int) -> Any:
    try:
        found = store.get(key)
    except Exception as error:
        raise HorovodInternalError(f"rank {rank} has not come to the store: {error}") from error
    if len(found) > _MOST_BYTES:
        raise HorovodInternalError(f"rank {rank} has put {len(found)} bytes into the store, at most {_MOST_BYTES} fit")
    try:
        return json.loads(found)
    except (ValueError, RecursionError):
        raise HorovodInternalError(f"what rank {rank} has put into the store is no JSON") from None
