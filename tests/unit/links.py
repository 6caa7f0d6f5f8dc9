"""Control links over ZeroMQ with all ends in one process, and what came over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

from hvdlite.control.link import ControlLink, Lost, Received
from hvdlite.control.zmqleaf import ZmqLeafLink
from hvdlite.control.zmqroot import ZmqRootLink
from hvdlite.negotiation.messages import End, EndKind
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

HOSTS = "abc"
SESSION = member(0, HOSTS).session
LEFT = End(EndKind.LEFT, 1, "here", "it called shutdown()")


def soon(seconds: float = PATIENCE_S) -> Scope:
    return Scope.of(seconds)


def zmq_links(through: Callable[[str], str] = lambda address: address, **values: Any) -> list[ControlLink]:
    """The root's link and those of two others, which dial what ``through`` makes of the root's address."""
    options = Settings(**values)
    root = ZmqRootLink(member(0, HOSTS), options)
    leaves = [ZmqLeafLink(member(rank, HOSTS), options) for rank in (1, 2)]
    where = through(root.address)
    with ThreadPoolExecutor() as pool:
        joining = [pool.submit(leaf.join, where, soon()) for leaf in leaves]
        root.accept({rank: leaf.address for rank, leaf in enumerate(leaves, 1)}, soon())
        for each in joining:
            each.result()
    return [root, *leaves]


def close(links: Sequence[ControlLink]) -> None:
    """Leaves and closes, all together: an end waits until the others have all that it sent."""
    for link in links:
        link.send(LEFT)
    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(link.close) for link in links]:
            each.result()


def receive(link: ControlLink) -> list[Received | Lost]:
    """Returns the messages that have come to ``link``, which learns of its connections while it sleeps."""
    link.inbox.sleep(0)
    return list(link.receive())


_came: WeakKeyDictionary[ControlLink, deque[Received | Lost]] = WeakKeyDictionary()


def next_from(link: ControlLink, *others: ControlLink, within_s: float = PATIENCE_S) -> Received | Lost:
    """Returns the next message to ``link``, while ``others`` are served too."""
    came = _came.setdefault(link, deque())
    deadline = soon(within_s)
    while not came:
        assert not deadline.is_over, "nothing came"
        came.extend(link.receive())
        for other in others:
            _came.setdefault(other, deque()).extend(receive(other))
        if not came:
            link.inbox.sleep(20 if others else 100)
    return came.popleft()
