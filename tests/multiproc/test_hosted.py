"""Ranks in processes that stay: seats by node, calls that follow each other, failures, and what is left of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import get_context, resource_tracker
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.errors import FunctionFailed, HorovodInternalError, WorkerFailed
from hvdlite.hosted.joining import joined, serve
from hvdlite.hosted.outcomes import Outcome, attempt, results
from hvdlite.hosted.placement import Node, Seat, by_node, seats
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.presence import names_at
from hvdlite.rendezvous.server import RendezvousServer
from tests.harness.patience import PATIENCE_S

ONE_NODE = [Node("n1", "first", "127.0.0.1")] * 3
TWO_NODES = [Node("n1", "first", "127.0.0.1"), Node("n2", "second", "127.0.0.2"), Node("n1", "first", "127.0.0.1")]

_servers: list[RendezvousServer] = []


def _serve(job: Job, seat: Seat) -> str:
    _servers.append(serve(job, seat))
    return _servers[-1].address


def _stop_serving() -> None:
    while _servers:
        _servers.pop().close()


def _environment_and_marks() -> tuple[dict[str, str], set[str]]:
    return dict(os.environ), names_at(os.getpid())


class Engine:
    """Three processes that serve one call after the other, on ``nodes``."""

    def __init__(self, stack: ExitStack) -> None:
        context = get_context("spawn")
        self.processes = [stack.enter_context(ProcessPoolExecutor(1, mp_context=context)) for _ in range(3)]

    def call(self, nodes: Sequence[Node], function: Callable[..., Any], *args: Any, **environment: str) -> list[Any]:
        """Calls ``function`` on all ranks; returns the results by rank, or raises the first failure."""
        order = by_node(nodes)
        processes = [self.processes[index] for index in order]
        taken = seats([nodes[index] for index in order])
        job = Job.create()
        address = processes[0].submit(_serve, job, taken[0]).result(PATIENCE_S)
        calls = {
            process.submit(attempt, function, args, {}, seat, job, address, environment): seat
            for process, seat in zip(processes, taken, strict=True)
        }
        outcomes = [_outcome(call, calls[call]) for call in as_completed(calls, PATIENCE_S)]
        processes[0].submit(_stop_serving).result(PATIENCE_S)
        return results(outcomes)


def _outcome(call: Future[Outcome], seat: Seat) -> Outcome:
    try:
        return call.result()
    except BrokenProcessPool:
        return Outcome(seat.rank, seat.host, death="was killed")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with ExitStack() as stack:
        stack.callback(resource_tracker._resource_tracker._stop)  # the pools of multiprocessing leave it running
        yield Engine(stack)


def _place_and_sum() -> tuple[list[int], float, str]:
    hvd.init()
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    return place, float(hvd.allreduce(np.full(5000, hvd.rank() + 1.0), op=hvd.Sum)[-1]), os.environ["EXTRA"]


def _fails_on_rank_1() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        raise OSError("the disk is full")
    hvd.allreduce(np.ones(10), name="never complete")


def _exits_on_rank_1() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        raise SystemExit(3)
    hvd.allreduce(np.ones(10), name="never complete")


def _is_killed_on_rank_1() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(10), name="never complete")


def _returns_what_cannot_be_sent() -> Any:
    hvd.init()
    return threading.Lock() if hvd.rank() == 2 else None


def test_ranks_are_placed_by_node_and_call_after_call(engine: Engine) -> None:
    before = [process.submit(_environment_and_marks).result(PATIENCE_S) for process in engine.processes]
    for _ in range(2):
        assert engine.call(ONE_NODE, _place_and_sum, EXTRA="one") == [
            ([rank, 3, rank, 3, 0, 1], 6.0, "one") for rank in range(3)
        ]
        assert engine.call(TWO_NODES, _place_and_sum, EXTRA="two") == [
            ([0, 3, 0, 2, 0, 2], 6.0, "two"),
            ([1, 3, 1, 2, 0, 1], 6.0, "two"),
            ([2, 3, 0, 1, 1, 2], 6.0, "two"),
        ]
    after = [process.submit(_environment_and_marks).result(PATIENCE_S) for process in engine.processes]
    assert after == before


@pytest.mark.parametrize("nodes", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def test_the_first_failure_is_raised_and_the_processes_serve_on(engine: Engine, nodes: Sequence[Node]) -> None:
    with pytest.raises(FunctionFailed, match=r"rank 1 on first:(?s:.*)OSError: the disk is full") as failed:
        engine.call(nodes, _fails_on_rank_1)
    assert failed.value.rank == 1
    assert not hasattr(failed.value, "__notes__")  # the others failed because it had left
    with pytest.raises(FunctionFailed, match=r"rank 1 on first:(?s:.*)SystemExit: 3"):
        engine.call(nodes, _exits_on_rank_1)
    with pytest.raises(FunctionFailed, match=r"rank 2 on \w+:(?s:.*)the result of rank 2, a lock, "):
        engine.call(nodes, _returns_what_cannot_be_sent)
    assert [total for _, total, _ in engine.call(nodes, _place_and_sum, EXTRA="")] == [6.0] * 3


def test_a_process_that_was_killed_comes_first(engine: Engine) -> None:
    with pytest.raises(WorkerFailed, match="^rank 1 on first was killed$") as failed:
        engine.call(TWO_NODES, _is_killed_on_rank_1)
    assert failed.value.rank == 1


def test_a_rank_without_rank_0_says_what_to_look_at() -> None:
    (seat, *_) = seats(ONE_NODE)
    with serve(job := Job.create(), seat) as server:
        address = server.address
    before = dict(os.environ)
    with (
        joined(seat, job, address, {"HVDLITE_START_TIMEOUT": "1"}),
        pytest.raises(HorovodInternalError, match=r"is rank 0 still running\?"),
    ):
        hvd.init()
    assert dict(os.environ) == before


def test_an_address_of_another_host_is_refused_in_a_sentence() -> None:
    elsewhere = [Node("n1", "first", "192.0.2.1"), Node("n2", "second", "192.0.2.2")]
    with pytest.raises(HorovodInternalError, match=r"rank 0 runs on first, and cannot listen at 192\.0\.2\.1"):
        serve(Job.create(), seats(elsewhere)[0])
