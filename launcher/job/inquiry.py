"""A question to the agents of a job, whose answers are used together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..agents.link import AgentLink


class Inquiry:
    """Asks all agents ``what``. To be looked at between turns of the loop, at the latest at ``until``."""

    def __init__(self, links: Collection[AgentLink], until: float, what: str, **fields: Any) -> None:
        self.until = until
        self._asked = {link: link.ask(what, **fields) for link in links}

    def is_over(self, now: float) -> bool:
        """True once all have answered, or are gone, or it is too late."""
        return now >= self.until or all(question.is_done for question in self._asked.values())

    def answers(self) -> Mapping[AgentLink, Any]:
        """What those answered who did."""
        return {link: asked.answer for link, asked in self._asked.items() if asked.is_done and not asked.error}
