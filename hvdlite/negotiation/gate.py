"""The order in which the first rank of a page reads what the ranks send around a closing.

Each rank reports its closing with a message, even an empty one, that has its unanswered bits. What a rank has sent
after that is read later: if decisions of the page are runs, once all ranks have closed; if they are reports to the
root, once the first rank has, because it knows all of them then. A join must be read after the bits that any rank has
submitted in the page, so it waits until all ranks have closed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hvdlite.negotiation.messages import Kind, Ready
from hvdlite.negotiation.wire import ProtocolError


class Gate:
    """The messages of ``ranks``, which have a page for the bits of ``in_page``; 0 if they have none.

    ``reporter`` is the first rank if decisions are reports, else None. ``is_open``: there is a page, and no rank has
    closed it. ``is_closed``: all have, or there is none. ``must_close`` is set once the page must be closed, and
    cleared when all ranks have closed it.
    """

    def __init__(self, ranks: Collection[int], names: int, reporter: int | None = None) -> None:
        self._ranks = frozenset(ranks)
        self._reporter = reporter
        self.in_page = (1 << names) - 1
        self.is_open, self.is_closed = names > 0, names == 0
        self.must_close = False
        self._closing = 1 if names else 0  # the number of the next or present closing
        self._generation = 0  # in which the page was opened
        self._closed: set[int] = set()
        self._early: list[tuple[int, Ready]] = []  # what ranks sent after they closed, while others have not

    def admit(self, rank: int, ready: Ready) -> Sequence[tuple[int, Ready]]:
        """Takes a message of ``rank``. Returns the messages to read now, with their ranks.

        Raises ProtocolError if no correct rank sends it.
        """
        if ready.closings > self._closing:
            raise ProtocolError("a rank closed a page that is not open")
        if self.is_closed:
            return ((rank, ready),)
        if ready.closings == self._closing:
            self._closed.add(rank)
            self.is_open, self.is_closed = False, self._closed == self._ranks
        elif has_join(ready):
            self.must_close = True
        elif not any(earlier == rank for earlier, _ in self._early):
            return ((rank, ready),)
        self._early.append((rank, ready))
        return self._take_early()

    def bits_of(self, ready: Ready) -> int:
        """Returns the bits of a message that count.

        What was sent before the page was opened comes there once more, unless a generation began in between.
        """
        comes_again = ready.closings < self._closing and ready.generation == self._generation
        return ready.bits & ~self.in_page if comes_again else ready.bits

    def open(self, generation: int) -> None:
        """The page is opened for the bits of ``generation``."""
        self._closing += 1
        self._generation = generation
        self._closed.clear()
        self.is_open, self.is_closed = True, False

    def _take_early(self) -> Sequence[tuple[int, Ready]]:
        early, self._early = self._early, []
        if self.is_closed:
            self.must_close = False
            return sorted(early, key=lambda each: has_join(each[1]))  # a rank's bits are from before its join
        readable = set(self._closed) if self._reporter in self._closed else set()
        taken = []
        for rank, ready in early:
            if rank not in readable or has_join(ready):
                readable.discard(rank)
                self._early.append((rank, ready))
            else:
                taken.append((rank, ready))
        return taken


def has_join(ready: Ready) -> bool:
    """True if a rank reports that it has joined."""
    return any(request.kind is Kind.JOIN for request in ready.requests)
