"""A rank's session in a job, from ``init`` to ``shutdown``: its groups, and the threads that serve them.

At most one session is current; `init` creates it, and every collective uses it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hvdlite.compat import stands_for_horovod
from hvdlite.dynamo import leave_out_all
from hvdlite.engine.apart import do_apart
from hvdlite.errors import HorovodInternalError, HvdError, NotInitialized
from hvdlite.groups.choose import arena_part, lacks_nccl
from hvdlite.groups.group import Group
from hvdlite.groups.sets import Registry
from hvdlite.host.descriptors import check_descriptors
from hvdlite.launched_by.report import report
from hvdlite.log import configure, logger
from hvdlite.members.process_set import ProcessSet, given_sets, global_process_set, refuse_part
from hvdlite.members.topology import Placement
from hvdlite.members.topology import group as group_by_host
from hvdlite.memory.arena import Arena
from hvdlite.negotiation.end_messages import error_of
from hvdlite.negotiation.messages import EndKind
from hvdlite.observe.loading import loading
from hvdlite.observe.recorder import Phase, Recorder, memory_at
from hvdlite.observe.timeline.switch import Switch
from hvdlite.rendezvous.client import Exchanges, MeetingOver
from hvdlite.rendezvous.lookout import looking_out
from hvdlite.rendezvous.meeting import meet
from hvdlite.rendezvous.presence import Presence
from hvdlite.rendezvous.world import meet_world
from hvdlite.scope import Scope
from hvdlite.settings import Settings, Start, doubt_about_size
from hvdlite.spin import agreed_spin_us
from hvdlite.tensors.device import CPU

_EXIT_S = 1.0
_GIVING_UP_S = 5.0  # for an interrupted `init` to end, which takes some tenths of a second on an idle machine


class Session:
    """One rank's session. Raises HorovodInternalError if not all ranks come within ``start_timeout``.

    ``everyone`` is the group of all ranks, ``sets`` are the process sets beside it, and ``group_of`` returns the group
    of a process set; see `Registry.group_of`.
    """

    def __init__(
        self,
        start: Start,
        options: Settings,
        presence: Presence,
        box: Recorder,
        number: int,
        on_met: Callable[[int], None],
        scope: Scope,
    ) -> None:
        """Joins the next epoch of the job; ``number`` is its number where a meeting serves one epoch only.

        ``on_met`` is called with the number of the epoch when all ranks have met.
        """
        self.presence, self._box = presence, box
        scope = Scope.of(options.start_timeout, scope)
        check_descriptors(1, 1)
        with (
            looking_out(start, presence),
            meet(start, number, scope) as meeting,
            Exchanges(meeting, start.rank, start.size, scope) as exchange,
        ):
            world = meet_world(start, options, meeting, exchange, lacks_nccl())
            on_met(exchange.epoch)
            self.membership = members = world.membership
            with exchange.together() as connecting_scope:
                self.spin_us = agreed_spin_us(options, members, exchange)
                self.options = options = replace(options, address=world.address, spin=self.spin_us)
                memory = arena_part(members, options)
                self.everyone = everyone = Group.open(members, options, exchange, connecting_scope, memory)
        self.placements = group_by_host([host.id for host in members.hosts])
        self.check_parameters = world.check_parameters
        self.plane_name = everyone.planes[CPU.kind].name
        self.other_planes = [(kind, plane.name) for kind, plane in everyone.planes.items() if kind != CPU.kind]
        self.sets = Registry(everyone, options)
        self.sets.watch(lambda number, group: box.watch(number, group.observer, group.ranks))
        box.enter(Phase.INSIDE)
        self.group_of = self.sets.group_of  # called by every submit
        self._closing = threading.Lock()
        self._is_closed = False
        self.timeline = Switch(members, self.sets)
        self.timeline.obey(start, options.timeline, options.timeline_mark_cycles)

    @property
    def placement(self) -> Placement:
        """The placement of this rank."""
        return self.placements[self.membership.rank]

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """As `Switch.start`, for the main thread too."""
        do_apart(lambda _: self.timeline.start(path, mark_cycles), "start_timeline()")

    def stop_timeline(self) -> None:
        """As `Switch.stop`, for the main thread too."""
        do_apart(lambda _: self.timeline.stop(), "stop_timeline()")

    def close(self) -> None:
        """Leaves the job and ends the threads, within little more than ``shutdown_timeout``.

        If a signal handler interrupts it, closing continues in the background, and another call waits for its end.
        """
        do_apart(lambda _: self._close(), "shutdown()")

    def _close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._leave()

    def _leave(self) -> None:
        self._box.account.leave(time.monotonic())
        self.sets.forget()
        global_process_set.unregister()
        scope = Scope.of(self.options.shutdown_timeout)
        for group in self._groups():
            group.end(EndKind.LEFT, scope)
        self.timeline.stop()
        self.presence.close()
        self._sum_up()
        self._box.close()

    def stop_at_exit(self) -> None:
        """Ends the threads; the connections of groups that have not ended stay open until the process ends."""
        self._box.account.leave(time.monotonic())
        scope = Scope.of(_EXIT_S)
        for group in self._groups():
            group.end(EndKind.EXITED, scope)
        self.timeline.stop()
        self._sum_up()
        self._box.stop()

    def _sum_up(self) -> None:
        """Logs where the time went, on rank 0, unless hvdrun reports that."""
        if self.options.summary and self.membership.rank == 0 and not self._box.is_read:
            hosts = [host.name for host in self.membership.hosts]
            if line := self._box.account.describe(hosts, time.monotonic()):
                logger.info("%s", line)

    def _groups(self) -> list[Group]:
        """All groups, the one of all ranks last: it reports to the others what happens, and has the memory."""
        return list(reversed(self.sets.groups.values()))


_lock = threading.RLock()  # reentrant, because a signal handler may call shutdown() while its thread is in init()
_beginning = threading.Lock()  # held to begin a session: an earlier, interrupted `init` may still be ending
_current: Session | None = None
_leaving: Session | None = None  # the session that `shutdown` is closing
_next_epoch = 0  # its number, for meetings that serve one epoch only
_begun = 0  # the number of sessions that this process, or a parent that forked it, has begun
_inherited: Session | None = None  # a session that this process must neither use nor close
_origin: Session | None = None  # the session in which this process was forked, until it begins its own


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Joins the job that the environment describes and waits for all its ranks; alone, makes a job of one.

    Called again, it only registers new ``process_sets``, which must be the same on all ranks. The text "dynamic" has no
    effect, since sets can always be added. ``comm`` may only list all ranks of the job. Raises ValueError for invalid
    settings and arguments, and HorovodInternalError if ranks are missing or do not match. An error of the process sets
    alone leaves a session. If a signal handler interrupts the call, it begins no session.
    """
    begun: list[Session] = []
    try:
        return _init(comm, given_sets(process_sets), begun)
    except BaseException:
        if begun and begun[0] is _current:
            shutdown()
        raise


def _init(comm: Sequence[int] | None, wanted: Sequence[ProcessSet], begun: list[Session]) -> None:
    """Puts a session that it begins into ``begun``, unless the session is to outlive an error of this call."""
    _await_other_threads()
    with _lock:
        _finish_leaving()
        if _current is not None:
            refuse_part(comm, _current.membership.size)
        else:
            start, options = Start.read(), Settings.read()
            refuse_part(comm, start.size)
            loading.thread = threading.get_ident()
            do_apart(lambda scope: _begin(start, options, scope, begun), "init()", patience_s=_GIVING_UP_S)
        session = current()
    if new := [process_set for process_set in wanted if not session.sets.knows(process_set)]:
        refused = session.sets.refuses(new)
        if refused is not None:
            begun.clear()
            raise refused


def _begin(start: Start, options: Settings, scope: Scope, begun: list[Session]) -> None:
    """Creates the current session, and closes it again if the caller of `init` was interrupted meanwhile."""
    global _current, _begun, _origin
    configure(start.rank, options.log_level, options.log_hide_time)
    with _beginning:
        session = _met(start, options, scope)
    if _origin is not None:
        _origin.sets.forget()
        _origin = None
    _begun += 1
    if _begun == 1:
        atexit.register(_at_exit)
        leave_out_all()
    if start.size == 1 and _begun == 1 and (doubt := doubt_about_size()):
        logger.warning("%s", doubt)
    logger.info(
        "rank %d of %d is ready, data plane %s%s, a waiting rank spins for %.0f µs",
        start.rank,
        start.size,
        session.plane_name,
        "".join(f", {name} for {kind}" for kind, name in session.other_planes),
        session.spin_us,
    )
    begun.append(session)
    _current = session
    if scope.cancelled:  # checked last: an interrupted caller cancels before it looks for a session
        _current = None
        session.close()


def _met(start: Start, options: Settings, scope: Scope) -> Session:
    presence = Presence(start)
    patience_s = 0.0 if options.stall_check_disable else options.stall_check_time_seconds
    box = Recorder(memory_at(options.blackbox), start.rank, start.size, patience_s)
    try:
        try:
            return Session(start, options, presence, box, _next_epoch, _have_met, scope)
        except MeetingOver as over:  # an earlier `init` was interrupted just when all ranks had met
            _have_met(over.epoch)
            return Session(start, options, presence, box, _next_epoch, _have_met, scope)
    except BaseException as error:
        if isinstance(error, HorovodInternalError) and error.blamed is not None:
            report(*error.blamed, options.report)
        presence.close()
        box.close()
        raise


def _have_met(epoch: int) -> None:
    global _next_epoch
    _next_epoch = epoch + 1


def shutdown() -> None:
    """Leaves the job. Collectives that are not running yet fail with ShutDown on every rank. May be called twice.

    If a signal handler interrupts it, this process has left its session; the next call, as well as `init`, waits until
    the session is closed.
    """
    global _leaving
    _await_other_threads()
    with _lock:
        if _current is not None:
            _leaving = _current
        _finish_leaving()


def _await_other_threads() -> None:
    """Waits while another thread begins or ends a session, in short waits in the main thread (`do_apart`)."""
    lock = _lock
    if not lock._is_owned():  # type: ignore[attr-defined]

        def wait(scope: Scope) -> None:
            with lock:
                pass

        do_apart(wait, "waiting for another thread that begins or ends a session")


def _finish_leaving() -> None:
    """Finishes a `shutdown` that was interrupted at any moment."""
    global _current, _leaving
    if (session := _leaving) is not None:
        if _current is session:
            _current = None
        session.close()
        if _leaving is session:  # a handler may have called `init` and `shutdown`
            _leaving = None


def _at_exit() -> None:
    """Ends nothing on other ranks: they notice the end of the process, so it has ended before any of them raises.

    So a launcher sees which rank failed first. If it ended the groups, a failed rank might end after the others.
    """
    global _current, _inherited
    _await_other_threads()
    with _lock:
        _finish_leaving()
        session, _current = _current, None
        _inherited = session
        if session is not None:
            session.stop_at_exit()


def _after_fork_in_child() -> None:
    """Leaves the session in the child, which has the parent's objects and descriptors but none of its threads."""
    global _lock, _beginning, _current, _leaving, _inherited, _origin
    _lock, _beginning = threading.RLock(), threading.Lock()
    inherited = _current or _leaving
    _origin = _current or _origin
    _current, _leaving, _inherited = None, None, inherited
    if inherited is not None:
        inherited.presence.close()  # this process's copy of the descriptor


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_initialized() -> bool:
    """True if this process is in a session."""
    return _current is not None


def current() -> Session:
    """The session. Raises HorovodInternalError before `init` and after `shutdown`."""
    if _current is None:
        raise _outside()
    return _current


def group_of(process_set: ProcessSet) -> Group:
    """The group that runs collectives of ``process_set``.

    Raises HorovodInternalError before ``init``, ValueError if the set is unknown or this rank is not in it.
    """
    session = _current
    if session is None:
        raise _outside()
    return session.everyone if process_set is global_process_set else session.group_of(process_set)


def _outside() -> HvdError:
    end = None if _origin is None else _origin.everyone.ended
    return NotInitialized(_not_initialized()) if end is None else error_of(end)


def _not_initialized() -> str:
    name = "Horovod" if stands_for_horovod() else "hvdlite"  # scripts of Horovod look for this sentence
    again = " again after shutdown()" if _begun else ""
    return f"{name} has not been initialized{again}; call hvd.init() first"


def shared_arena() -> Arena | None:
    """The memory that ranks of this host share; None outside of a session, after a failure, or if there is none."""
    memory = None if _current is None else _current.everyone.memory
    arena = memory and memory.arena
    return arena if arena is not None and arena.is_shared else None


def known_session() -> Session:
    """The session, or in a forked child its parent's, for facts about the job. Raises ValueError without either."""
    session = _current or _origin
    if session is None:
        raise ValueError(_not_initialized())
    return session


def rank() -> int:
    """The number of this process in the job, from 0. Raises ValueError before `init`, as do the functions below."""
    return known_session().membership.rank


def size() -> int:
    """The number of ranks of the job."""
    return known_session().membership.size


def local_rank() -> int:
    """The number of this process among those on its host."""
    return known_session().placement.local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return known_session().placement.local_size


def cross_rank() -> int:
    """The index of this host among the hosts that have this local rank."""
    return known_session().placement.cross_rank


def cross_size() -> int:
    """The number of hosts that have this local rank."""
    return known_session().placement.cross_size


def is_homogeneous() -> bool:
    """True if every host has the same number of ranks."""
    return len({placement.local_size for placement in known_session().placements}) == 1
