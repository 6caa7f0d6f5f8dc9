"""Signs of life between hvdrun and the agents of other hosts, for networks that drop all packets and end no stream.

Every second hvdrun sends each agent a lease, which the agent answers. An agent whose lease has expired ends its
workers; a host that has sent nothing for a little longer is given up. hvdrun may be stopped meanwhile: on Ctrl-Z it
grants an unlimited lease first, and silence while it was not running does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..stream import messages
from .link import AgentLink

LEASE_S: Final = 7.0  # with the grace time for the workers all is over within 10 s
SILENCE_S: Final = 8.0
_INTERVAL_S: Final = 1.0


class Lease:
    """The leases of the agents of one job. Times are monotonic."""

    def __init__(self, links: Sequence[AgentLink], now: float) -> None:
        self._links = list(links)
        self._awake_since = self._last_tick = self._next = now

    @property
    def deadline(self) -> float | None:
        """The time of the next `tick`."""
        return self._next if self._links else None

    def tick(self, now: float) -> list[AgentLink]:
        """Renews the leases when that is due. Returns the agents to give up, each once."""
        if now - self._last_tick > 2 * _INTERVAL_S:  # we were stopped, or too busy to listen
            self._awake_since = now
        self._last_tick = now
        silent = [link for link in self._links if now - max(link.received_at, self._awake_since) > SILENCE_S]
        self._links = [link for link in self._links if not link.is_over and link not in silent]
        if now >= self._next:
            self._next = now + _INTERVAL_S
            self._grant(now, LEASE_S)
        return silent

    def suspend(self, now: float) -> None:
        """Grants a lease that lasts until the next one."""
        self._grant(now, None)

    def _grant(self, now: float, for_s: float | None) -> None:
        for link in self._links:
            link.send(messages.Lease(now, for_s))
