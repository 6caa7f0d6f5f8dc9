"""The members of a group and their hosts: all that a group needs to know before its ranks connect."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from hvdlite.members.topology import by_host


class Host(NamedTuple):
    """The host of a member. Members with equal ``id`` share memory; messages call the host ``name``.

    ``has_native`` is true if the member there could load the native library, and ``has_nccl`` if NCCL is installed,
    or the member has no GPU for it.
    """

    id: str
    name: str
    has_native: bool = True
    has_nccl: bool = True


@dataclass(frozen=True)
class Membership:
    """One rank's place in a group.

    ``rank`` is its number in the group. ``ranks`` are the members' numbers in the job, or from 0 without a job, and
    ``hosts`` where they run. ``epoch`` counts the worlds of a job, from 0. It is the same on all ranks, since the
    rendezvous gives it out. ``key`` is 32 bytes that no other group has. All other keys, and the number in this group's
    frames, are derived from it and the epoch.
    """

    rank: int
    ranks: tuple[int, ...]
    hosts: tuple[Host, ...]
    epoch: int
    key: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    @property
    def number(self) -> int:
        """This rank's number in the job."""
        return self.ranks[self.rank]

    @cached_property
    def by_leader(self) -> dict[int, list[int]]:
        """The members of each host, by the first of them, its leader."""
        return {ranks[0]: ranks for ranks in by_host([host.id for host in self.hosts]).values()}

    @property
    def is_one_host(self) -> bool:
        """True if all members share memory."""
        return len(self.by_leader) == 1

    @property
    def on_this_host(self) -> list[int]:
        """The members of this rank's host, itself among them; the first is the leader."""
        return next(ranks for ranks in self.by_leader.values() if self.rank in ranks)

    @cached_property
    def without_native(self) -> list[int]:
        """The members that lack the native library, by their numbers in the job."""
        return [rank for rank, host in zip(self.ranks, self.hosts, strict=True) if not host.has_native]

    @cached_property
    def without_nccl(self) -> list[int]:
        """The members that have GPUs and no NCCL, by their numbers in the job."""
        return [rank for rank, host in zip(self.ranks, self.hosts, strict=True) if not host.has_nccl]

    @property
    def leader_of(self) -> list[int]:
        """For each member, the rank that sends its messages to the root: itself on the root's host, else its leader."""
        leaders = {rank: leader for leader, ranks in self.by_leader.items() for rank in ranks}
        return [leaders[rank] or rank for rank in range(self.size)]

    @property
    def session(self) -> int:
        """The 64 bits that identify this group in its frames."""
        return int.from_bytes(self._derived("session", 8), "little")

    def key_for(self, purpose: str) -> bytes:
        """Derives 32 bytes for one purpose, from which neither ``key`` nor another derived key can be computed."""
        return self._derived(f"key for {purpose}", 32)

    def among(self, members: Sequence[int], name: str) -> Membership:
        """This rank's membership in a part of this group, whose ``members`` are ranks here, under a unique ``name``."""
        return Membership(
            members.index(self.rank),
            tuple(self.ranks[member] for member in members),
            tuple(self.hosts[member] for member in members),
            self.epoch,
            self._derived(f"part {name} {' '.join(map(str, members))}", 32),
        )

    def _derived(self, purpose: str, nbytes: int) -> bytes:
        return hashlib.blake2b(f"{self.epoch} {purpose}".encode(), key=self.key, digest_size=nbytes).digest()
