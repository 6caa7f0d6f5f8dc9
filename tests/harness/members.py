"""Memberships without a rendezvous."""

from __future__ import annotations

from hvdlite.members.membership import Host, Membership

KEY = bytes(range(32))


def member(rank: int, hosts: str, key: bytes = KEY, epoch: int = 0) -> Membership:
    """Rank ``rank`` of a group on ``hosts``, a letter for each rank."""
    return Membership(rank, tuple(range(len(hosts))), tuple(Host(host, host) for host in hosts), epoch, key)
