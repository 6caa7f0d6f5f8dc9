"""A rank's membership in a job, from ``init`` to ``shutdown``: who the ranks are, and the threads that serve them.

One session at a time is current; `init` makes it and every collective uses it.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from hvdlite.core.entry import Entry
from hvdlite.core.handle import Handle
from hvdlite.core.messages import Kind
from hvdlite.core.topology import Placement, group
from hvdlite.dataplane.opening import Opening, choose, open_plane
from hvdlite.errors import HorovodInternalError
from hvdlite.log import configure, logger
from hvdlite.rendezvous.client import exchange
from hvdlite.rendezvous.door import Door
from hvdlite.rendezvous.hostid import kernel_host_id
from hvdlite.rendezvous.job import Job
from hvdlite.runtime.control import ControlLink, SoloLink
from hvdlite.runtime.engine import Engine
from hvdlite.runtime.unixlink import UnixLink
from hvdlite.runtime.zmqlink import ZmqLeafLink, ZmqRootLink
from hvdlite.settings import Settings
from hvdlite.version import __version__

Swap = Callable[[Any], Sequence[Any]]

_EXIT_S = 1.0


class Session:
    """One rank's live membership. Raises HorovodInternalError if not all ranks come within ``start_timeout``."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings = settings
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            deadline = time.monotonic() + settings.start_timeout
            job = Job.from_settings(settings) if settings.size > 1 else Job.create()
            swap = _swapper(self._context, job, settings, number, deadline)
            cards = swap(_card(settings))
            self.placements = _placements(cards)
            hosts, host_ids = [card["host"] for card in cards], [card["hostid"] for card in cards]
            is_one_host = len(set(host_ids)) == 1
            session = _session_id(job, number)
            link = _open_link(self._context, job, settings, session, swap, deadline, is_one_host)
            opening = Opening(settings, job.key("data plane"), session, is_one_host, swap, deadline)
            plane = open_plane(choose(settings.plane, host_ids), opening)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.plane_name = plane.name
        self._names = {kind: itertools.count() for kind in Kind}
        self._engine = Engine(settings, hosts, link, plane)

    @property
    def placement(self) -> Placement:
        """Where this rank is."""
        return self.placements[self.settings.rank]

    def automatic_name(self, kind: Kind) -> str:
        """The next name for a tensor that the user did not name; counted for each kind of collective."""
        return f"{kind}.noname.{next(self._names[kind])}"

    def submit(self, entry: Entry, will_wait: bool = False) -> None:
        """Puts a tensor in flight; see `Engine.submit`."""
        self._engine.submit(entry, will_wait)

    def wait(self, handle: Handle) -> None:
        """Returns when ``handle`` is done."""
        self._engine.wait(handle)

    def close(self) -> None:
        """Leaves the job and ends the threads, within ``shutdown_timeout`` and a little."""
        self._engine.shut_down(time.monotonic() + self.settings.shutdown_timeout, on_closed=self._context.term)

    def stop_at_exit(self) -> None:
        """Ends the threads; connections stay open until the process ends."""
        self._engine.stop_at_exit(time.monotonic() + _EXIT_S)


_lock = threading.RLock()  # a signal's handler may call shutdown() while its thread is in init()
_current: Session | None = None
_completed = 0  # inits of this process that succeeded: ranks of a job count alike
_inherited: Session | None = None  # a session that this process must neither use nor close: see where it is set


def init() -> None:
    """Joins the job that the environment describes and waits for all its ranks; alone, makes a job of one.

    Does nothing if called again. Raises ValueError for settings that cannot be, HorovodInternalError when ranks do not
    come in time or do not fit together.
    """
    global _current, _completed
    with _lock:
        if _current is not None:
            return
        settings = Settings.read()
        configure(settings.rank, settings.log_level, settings.log_hide_time)
        _current = Session(settings, _completed)
        _completed += 1
        if _completed == 1:
            atexit.register(_at_exit)
        logger.info("rank %d of %d is ready, data plane %s", settings.rank, settings.size, _current.plane_name)


def shutdown() -> None:
    """Leaves the job. Collectives that are not running yet fail with ShutDown on every rank. May be called twice."""
    global _current
    with _lock:
        session, _current = _current, None
        if session is not None:
            session.close()


def _at_exit() -> None:
    """Says no farewell: peers learn of the end of a process from the kernel, so it is over before any of them raises.

    A launcher then sees who failed first. A rank that failed and said so here would be outrun by those that heard it.
    """
    global _current, _inherited
    with _lock:
        session, _current = _current, None
        _inherited = session
        if session is not None:
            session.stop_at_exit()


def _after_fork_in_child() -> None:
    """The child has the parent's objects and descriptors but none of its threads, so it is in no session."""
    global _lock, _current, _inherited
    _lock = threading.RLock()
    _current, _inherited = None, _current


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_initialized() -> bool:
    """Whether this process is in a session."""
    return _current is not None


def current() -> Session:
    """The session. Raises HorovodInternalError before `init` and after `shutdown`."""
    if _current is None:
        raise HorovodInternalError("hvdlite is not initialized; call hvd.init() first (a fork does not inherit it)")
    return _current


def _settled() -> Session:
    if _current is None:
        raise ValueError("hvdlite is not initialized; call hvd.init() first")
    return _current


def rank() -> int:
    """The number of this process in the job, from 0. Raises ValueError before `init`, as do the functions below."""
    return _settled().settings.rank


def size() -> int:
    """The number of ranks of the job."""
    return _settled().settings.size


def local_rank() -> int:
    """The number of this process among those on its host."""
    return _settled().placement.local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return _settled().placement.local_size


def cross_rank() -> int:
    """The index of this host among the hosts that have this local rank."""
    return _settled().placement.cross_rank


def cross_size() -> int:
    """The number of hosts that have this local rank."""
    return _settled().placement.cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    return len({placement.local_size for placement in _settled().placements}) == 1


def _card(settings: Settings) -> dict[str, Any]:
    return {
        "version": __version__,
        "host": settings.hostname or socket.gethostname(),
        "hostid": settings.hostid or kernel_host_id(),
    }


def _placements(cards: Sequence[dict[str, Any]]) -> tuple[Placement, ...]:
    versions = {card["version"] for card in cards}
    if len(versions) > 1:
        told = ", ".join(f"rank {rank} has {card['version']}" for rank, card in enumerate(cards))
        raise HorovodInternalError(f"ranks have different versions of hvdlite: {told}. Install the same everywhere.")
    return group([card["hostid"] for card in cards])


def _swapper(context: zmq.Context[Any], job: Job, settings: Settings, number: int, deadline: float) -> Swap:
    if settings.size == 1:
        return lambda card: [card]
    rounds = itertools.count(number << 8)

    def swap(card: Any) -> Sequence[Any]:
        return exchange(
            context,
            job,
            settings.rendezvous,
            number=next(rounds),
            rank=settings.rank,
            size=settings.size,
            card=card,
            deadline=deadline,
        )

    return swap


def _session_id(job: Job, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{job.name} {number}".encode(), digest_size=8).digest(), "little")


def _open_link(
    context: zmq.Context[Any],
    job: Job,
    settings: Settings,
    session: int,
    swap: Swap,
    deadline: float,
    is_one_host: bool,
) -> ControlLink:
    if settings.size == 1:
        return SoloLink()
    if is_one_host:
        return _open_unix_link(job.key("control"), settings, session, swap, deadline)
    if settings.rank > 0:
        return ZmqLeafLink(context, job, session, settings, swap("")[0])
    root = ZmqRootLink(context, job, session, settings, "tcp://127.0.0.1:*")
    swap(root.address)
    root.accept(deadline)
    return root


def _open_unix_link(token: bytes, settings: Settings, session: int, swap: Swap, deadline: float) -> ControlLink:
    if settings.rank > 0:
        return UnixLink.dial(swap("")[0], token, session, settings, deadline)
    with Door(token) as door:
        swap(door.address)
        return UnixLink.accept(door, session, settings, deadline)
