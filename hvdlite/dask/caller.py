"""The caller's side: it starts a task on each worker, follows their events, and ends all of them together."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from distributed import Client, Future
from distributed.comm import get_address_host, get_address_host_port

from hvdlite.dask.task import BEGUN, ENDED, Place, place, run_rank, topic_of
from hvdlite.errors import LaunchError
from hvdlite.hosted.outcomes import Outcome, lost, results
from hvdlite.hosted.placement import Node, Seat, by_node, seats
from hvdlite.log import logger
from hvdlite.ops.by_value import dump_by_value
from hvdlite.rendezvous.job import Job
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.version import __version__

_LOOK_S: Final = 0.1
_GRACE_S: Final = 5.0  # after the first failure, for the outcomes of the other ranks
_LEFT: Final = "left"
_END_S: Final = 15.0  # for cancelled tasks to end their ranks: longer than the tasks wait before SIGKILL


def call(
    client: Client,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: int | None,
    workers: Sequence[str] | None,
    environment: dict[str, str],
    start_timeout: float | None,
) -> list[Any]:
    """`hvdlite.dask.run`."""
    if not isinstance(client, Client) or client.asynchronous:
        raise ValueError(f"client must be a synchronous dask.distributed.Client, got {type(client).__name__}")
    if not callable(func):
        raise ValueError(f"func must be a function, got {type(func).__name__}")
    if client.scheduler is None:
        raise ValueError(f"client is {client.status}; make another one")
    if workers is not None and (isinstance(workers, str) or not isinstance(workers, Iterable)):
        raise ValueError(
            f"workers must be a list of workers' addresses or names, got {workers!r}; the number of ranks is num_proc"
        )
    if size is not None and workers is not None:
        raise ValueError("num_proc and workers exclude each other: each named worker is a rank")
    try:
        function = dump_by_value((func, args, kwargs), "")
    except ValueError as error:
        raise ValueError(f"the function or its arguments {error}") from error
    timeout_s = Settings.read().start_timeout if start_timeout is None else start_timeout
    environment.setdefault("HVDLITE_START_TIMEOUT", f"{timeout_s:g}")
    # A client of our own: its event handlers replace none of the user's, and its end cancels its tasks.
    with Client(client.scheduler.address, security=client.security, set_as_default=False, name="hvdlite") as own:
        addresses = _ranks(own, workers) if size is None else _first(own, size, timeout_s)
        taken = seats(_nodes(own, addresses))
        logger.info("%d rank(s) start on workers of Dask: %s", len(addresses), ", ".join(addresses))
        return results(_Job(own, addresses, taken, function, environment).run(timeout_s))


class _Job:
    """One job: a task for each of ``taken``, on the worker at the same index of ``addresses``.

    All events come through one queue: ``(rank, BEGUN, ENDED, _LEFT or an outcome)``.
    """

    def __init__(
        self,
        client: Client,
        addresses: Sequence[str],
        taken: Sequence[Seat],
        function: bytes,
        environment: dict[str, str],
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._seats = taken
        self._function = function
        self._environment = environment
        self._job = Job.create()
        self._events: queue.SimpleQueue[tuple[int, str | Outcome]] = queue.SimpleQueue()
        self._futures: dict[int, Future] = {}
        self._rendezvous = ""
        self._begun: set[int] = set()  # ranks whose tasks have begun
        self._ended: set[int] = set()  # ranks whose tasks or workers have ended
        self._outcomes: dict[int, Outcome] = {}  # in the order in which they came

    def run(self, start_s: float) -> list[Outcome]:
        """Returns the outcomes that came, first come first. Raises LaunchError if tasks do not begin in time."""
        with self._listening():
            try:
                self._start(start_s)
                self._wait()
            finally:
                self._end()
        return list(self._outcomes.values())

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Subscribes to the events of the tasks and of the workers."""
        self._client.subscribe_topic(topic_of(self._job), self._note_task)
        for rank, address in enumerate(self._addresses):
            self._client.subscribe_topic(address, partial(self._note_worker, rank))
        try:
            yield
        finally:
            for topic in (topic_of(self._job), *self._addresses):
                self._client.unsubscribe_topic(topic)

    def _note_task(self, event: tuple[float, Any]) -> None:
        what, rank, rendezvous = event[1]
        self._rendezvous = rendezvous or self._rendezvous
        self._events.put((rank, what))

    def _note_worker(self, rank: int, event: tuple[float, Any]) -> None:
        if isinstance(event[1], Mapping) and event[1].get("action") == "remove-worker":
            self._events.put((rank, _LEFT))

    def _note_future(self, rank: int, future: Future) -> None:
        """Called in the client's only thread for callbacks, so it must not wait for the outcome."""
        if future.status == "finished":
            self._client.loop.add_callback(self._fetch, rank, future)
        elif future.status == "error":
            self._events.put((rank, self._death(rank, f"could not be run by Dask: {future.exception()!r}")))
        else:  # by another client, or with the scheduler
            self._events.put((rank, self._death(rank, f"was ended: its task in Dask is {future.status}")))

    async def _fetch(self, rank: int, future: Future) -> None:
        """Waits for the outcome, perhaps for ever: if its worker leaves with it, `_note_worker` reports that."""
        self._events.put((rank, await self._client.gather(future, asynchronous=True)))

    def _submit(self, rank: int) -> None:
        future = self._client.submit(
            run_rank,
            self._function,
            self._seats[rank],
            self._job,
            self._rendezvous,
            self._environment,
            key=f"hvdlite-{self._job.name}-rank-{rank}",
            workers=[self._addresses[rank]],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )
        self._futures[rank] = future
        future.add_done_callback(partial(self._note_future, rank))

    def _start(self, start_s: float) -> None:
        """Submits rank 0, whose task reports the rendezvous's address, and then the others with that address."""
        scope = Scope.of(start_s)
        self._submit(0)
        while not self._outcomes and len(self._begun) < len(self._seats):
            if not self._receive(scope):
                missing = [rank for rank in self._futures if rank not in self._begun]
                where = ", ".join(f"rank {rank} on {self._addresses[rank]}" for rank in missing)
                raise LaunchError(
                    f"{where} did not begin within {start_s:g} s: each rank needs a free thread of its worker. See "
                    "which tasks run there (client.processing()), name other workers, or raise start_timeout"
                )
            if self._rendezvous and len(self._futures) == 1:
                for rank in range(1, len(self._seats)):
                    self._submit(rank)

    def _wait(self) -> None:
        """Waits for the outcomes of all ranks, after the first failure for at most `_GRACE_S`."""
        scope = Scope()
        while len(self._outcomes) < len(self._seats) and self._receive(scope):
            if scope.timeout_s is None and not all(outcome.is_success for outcome in self._outcomes.values()):
                scope = Scope.of(_GRACE_S)

    def _end(self) -> None:
        """Cancels the remaining tasks, and waits until their ranks have ended."""
        if self._client.status != "running":
            return  # the scheduler is gone, and with it the tasks
        self._client.cancel([future for future in self._futures.values() if not future.done()])
        scope = Scope.of(_END_S)
        while self._begun - self._ended and self._receive(scope):
            pass

    def _receive(self, scope: Scope) -> bool:
        """Waits for the next event; false if none comes in time."""
        try:
            rank, what = self._events.get(timeout=scope.timeout_s)
        except queue.Empty:
            return False
        if what == BEGUN:
            self._begun.add(rank)
        elif what == ENDED:
            self._ended.add(rank)
        elif what == _LEFT:
            self._ended.add(rank)
            death = lost(f"was lost: its worker {self._addresses[rank]} left Dask's cluster")
            self._outcomes.setdefault(rank, self._death(rank, death))
        elif isinstance(what, Outcome):
            self._outcomes.setdefault(rank, what)
        return True

    def _death(self, rank: int, how: str) -> Outcome:
        return Outcome(rank, self._seats[rank].host, death=how)


def _ranks(client: Client, workers: Sequence[str] | None) -> list[str]:
    """The addresses of the workers of the ranks, by rank. Raises ValueError for unknown workers."""
    there = _workers(client)
    by_name = {str(worker["name"]): address for address, worker in there.items()}
    chosen = list(there) if workers is None else [by_name.get(str(each), each) for each in workers]
    if unknown := [str(each) for each in chosen if each not in there]:
        raise ValueError(f"the cluster has no worker {', '.join(unknown)}; it has {', '.join(there) or 'none'}")
    if len(set(chosen)) < len(chosen):
        raise ValueError("a worker is named twice; each runs one rank")
    if not chosen:
        raise LaunchError("the cluster has no workers yet; give num_proc to wait for them")
    return _in_order(chosen)


def _first(client: Client, size: int, timeout_s: float) -> list[str]:
    """The addresses of the first ``size`` workers, by rank. Raises LaunchError if there are fewer after ``timeout_s``.

    `Client.wait_for_workers` does not return the workers that it saw, and one may leave right afterwards.
    """
    scope = Scope.of(timeout_s)
    while len(there := [each for each, worker in _workers(client).items() if worker["status"] == "running"]) < size:
        if scope.is_over:
            raise LaunchError(
                f"{size} ranks need as many workers, and Dask's cluster has {len(there)} ready after {timeout_s:g} s; "
                "start more workers, lower num_proc, or raise start_timeout"
            )
        time.sleep(_LOOK_S)  # the scheduler does not notify clients of new workers
    return _in_order(sorted(there, key=_by_host_and_port)[:size])


def _workers(client: Client) -> Mapping[str, Mapping[str, Any]]:
    """The scheduler's description of each worker, by address."""
    found: Mapping[str, Mapping[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return found


def _in_order(addresses: Sequence[str]) -> list[str]:
    """``addresses`` by rank: by host and port, and those of a host follow each other."""
    chosen = sorted(addresses, key=_by_host_and_port)
    order = by_node([Node(get_address_host(address), "", "") for address in chosen])
    return [chosen[index] for index in order]


def _by_host_and_port(address: str) -> tuple[str, int, str]:
    try:
        host, port = get_address_host_port(address)
    except ValueError:  # a worker within this process
        return get_address_host(address), 0, address
    return host, port, address


def _nodes(client: Client, addresses: Sequence[str]) -> list[Node]:
    """The workers' nodes. Raises LaunchError if a worker lacks this version of hvdlite."""
    answers: dict[str, Place | BaseException] = client.run(place, workers=list(addresses), on_error="return")
    nodes = []
    for address in addresses:
        found = answers[address]
        if isinstance(found, BaseException) or found.version != __version__:
            have = f"has {found.version}" if isinstance(found, Place) else f"cannot import it: {found}"
            raise LaunchError(f"the worker {address} needs hvdlite {__version__}, and {have}; install the same there")
        nodes.append(Node(found.host_id, found.host, get_address_host(address)))
    return nodes
