"""The streams of the caller: what is read is there, what is written is waited for, and the host never waits for either.

A stream that is held does nothing of what it is given. So a host that gets past a call while its stream is held has not
waited for it, and what is right in the end was ordered by the device.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.cuda.events import Events
from hvdlite.cuda.streams import Stream
from hvdlite.session import current
from hvdlite.tensors.dtypes import DType, Sum
from tests.gpu.fake import Fakes
from tests.gpu.planes import opened, spans_of
from tests.gpu.program import Program, StreamedArray
from tests.gpu.test_ranks import PLANES, SETTING
from tests.harness import ProcessRanks, process_ranks, reached
from tests.harness.patience import NEVER_SILENT, STALLED, until

SHAPE = (6, 1000)


def _values(rank: int) -> Any:
    return np.arange(6000, dtype=np.float32).reshape(SHAPE) % 100 + rank


def _cases(program: Program) -> dict[str, tuple[Callable[[StreamedArray, str], Any], list[Any]]]:
    """For each form the call that makes of an array its results, synchronized, and what they are."""
    front_end, size, rank = program.collectives, hvd.size(), hvd.rank()
    everyone = [_values(each) for each in range(size)]
    total, rows = sum(everyone), 6 // size
    own = slice(rank * rows, (rank + 1) * rows)
    joined = np.concatenate([each[own] for each in everyone])

    def waited(form: str, **keywords: Any) -> Callable[[StreamedArray, str], Any]:
        return lambda array, name: hvd.synchronize(getattr(front_end, form)(array, name=name, **keywords))

    def grouped(array: StreamedArray, name: str) -> Any:
        return hvd.synchronize(front_end.grouped_allreduce_async([array, array], name=name, op=hvd.Sum))

    def packed(array: StreamedArray, name: str) -> Any:
        return hvd.synchronize(front_end.grouped_allreduce_async([array] * 20, name=name, op=hvd.Sum))

    def dropped_at_once(array: StreamedArray, name: str) -> Any:
        handle = front_end.allreduce_async(array, name=name, op=hvd.Sum)
        del array
        return hvd.synchronize(handle)

    def several(array: StreamedArray, name: str) -> Any:
        handles = [front_end.allreduce_async(array, name=f"{name} {number}", op=hvd.Sum) for number in range(5)]
        return [hvd.synchronize(handle) for handle in reversed(handles)]

    return {
        "asynchronous": (waited("allreduce_async", op=hvd.Sum), [total]),
        "average": (waited("allreduce_async", op=hvd.Average), [total / size]),
        "in place": (waited("allreduce_async_", op=hvd.Sum), [total]),
        "blocking": (lambda array, name: front_end.allreduce(array, name=name, op=hvd.Sum), [total]),
        "blocking, in place": (lambda array, name: front_end.allreduce_(array, name=name, op=hvd.Sum), [total]),
        "grouped": (grouped, [total, total]),
        "packed": (packed, [total] * 20),
        "dropped": (dropped_at_once, [total]),
        "several": (several, [total] * 5),
        "allgather": (waited("allgather_async"), [np.concatenate(everyone)]),
        "broadcast": (waited("broadcast_async", root_rank=0), [everyone[0]]),
        "reducescatter": (waited("reducescatter_async", op=hvd.Sum), [total[own]]),
        "alltoall": (lambda array, name: front_end.alltoall(array, name=name), [joined]),
    }


def _every_form(folder: str, is_default: bool) -> list[str]:
    program, wrong = Program(folder), []
    with program.streams.default() if is_default else program.streams.opened() as stream:
        for what, (call, wanted) in _cases(program).items():
            for again in range(2):  # new, and known
                program.hold(stream)
                array = program.produced(_values(hvd.rank()), stream)
                with program.letting_go(stream):
                    results = call(array, what)
                del array  # may still be read, which the owner of memory does not know
                results = results if isinstance(results, list) else [results]
                if any(each.was_allocated_aside != (what in ("allgather", "alltoall")) for each in results):
                    wrong.append(f"{what}: allocated in the wrong stream")
                copies = [program.consumed(each, stream) for each in results]
                results.clear()  # may still be read by the caller's stream
                program.release(stream)
                stream.synchronize()
                for copied, right in zip(copies, wanted, strict=True):
                    if not np.allclose(copied.on_device(), right, rtol=1e-6):  # NCCL rounds 1 / 3
                        wrong.append(f"{what}, {'known' if again else 'new'}: {copied.on_device()}")
    del copies, copied
    hvd.barrier()
    program.leave()
    return wrong


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize(("size", "is_default"), [(1, False), (2, False), (2, True), (3, False)])
def test_every_form_follows_the_producer_and_comes_before_the_consumer(
    loaded_fakes: Fakes, size: int, is_default: bool, plane: str
) -> None:
    """In a stream of the program's own, or in the default one."""
    arguments = str(loaded_fakes.folder), is_default
    for outcome in process_ranks(size, _every_form, *arguments, environ={**STALLED, SETTING: plane}):
        assert outcome.result() == []


def _consumers_wait(folder: str) -> None:
    """The collective has been launched, and its stream is held."""
    program = Program(folder)
    front_end, ones = program.collectives, np.ones(1000, np.float32)
    with program.streams.opened():
        front_end.allreduce(program.array(ones), name="first")
        own = program.plane_stream
        own.synchronize()
        events = Events(program.ordinal)
        program.hold(own)
        handle, asked = (front_end.allreduce_async(program.array(ones), name=name, op=hvd.Sum) for name in "xy")
        group = front_end.grouped_allreduce_async([program.array(ones)] * 2, name="group")
        with program.streams.opened() as other:
            result = hvd.synchronize(handle)
            copied = program.consumed(result, other)
            del result
            moment = events.record(other.handle.value or 0)
            until(lambda: asked.is_done and group.is_done)
            hvd.barrier()  # of the hosts
            assert not any((moment.event.is_done, hvd.poll(asked), hvd.poll(group)))
            program.release(own)
            other.synchronize()
            assert (copied.on_device() == hvd.size()).all()
            until(lambda: hvd.poll(asked) and hvd.poll(group))
        late, size = front_end.allreduce_async(program.array(ones), name="late", op=hvd.Sum), hvd.size()
        hvd.barrier()  # so that all have submitted
        hvd.shutdown()  # waits for the device
        assert (hvd.synchronize(late).on_device() == size).all()
    events.close()
    program.leave()


def test_consumers_of_any_stream_wait_and_hosts_can_ask(loaded_fakes: Fakes) -> None:
    for outcome in process_ranks(2, _consumers_wait, str(loaded_fakes.folder), environ=STALLED):
        outcome.result()


def _two_threads(folder: str) -> list[str]:
    program, wrong = Program(folder), []
    everyone = sum(_values(rank) for rank in range(hvd.size()))

    def train(number: int) -> None:
        with program.streams.opened() as stream:
            for step in range(5):
                program.hold(stream)
                array = program.produced(_values(hvd.rank()) * number, stream)
                with program.letting_go(stream):
                    result = program.collectives.allreduce(array, name=f"{number} {step}", op=hvd.Sum)
                copied = program.consumed(result, stream)
                del array, result
                program.release(stream)
                stream.synchronize()
                if not np.array_equal(copied.on_device(), everyone * number):
                    wrong.append(f"thread {number}, step {step}")

    threads = [threading.Thread(target=train, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    program.leave()
    return wrong


@pytest.mark.parametrize("plane", PLANES)
def test_threads_have_streams_of_their_own(loaded_fakes: Fakes, plane: str) -> None:
    for outcome in process_ranks(2, _two_threads, str(loaded_fakes.folder), environ={**STALLED, SETTING: plane}):
        assert outcome.result() == []


def _joined(folder: str) -> list[float]:
    program, totals = Program(folder), []
    with program.streams.opened() as stream:
        for _ in range(1 + hvd.rank()):
            program.hold(stream)
            array = program.produced(np.ones(2), stream)
            with program.letting_go(stream):
                result = program.collectives.allreduce(array, name="x", op=hvd.Sum)
            copied = program.consumed(result, stream)
            program.release(stream)
            stream.synchronize()
            totals.append(copied.on_device()[0])
        assert hvd.join() == hvd.size() - 1
        del array, result
    program.leave()
    return totals


@pytest.mark.parametrize("plane", PLANES)
def test_ranks_that_have_joined_give_zeros(loaded_fakes: Fakes, plane: str) -> None:
    outcomes = process_ranks(3, _joined, str(loaded_fakes.folder), environ={**STALLED, SETTING: plane})
    assert [outcome.result() for outcome in outcomes] == [[3], [3, 2], [3, 2, 1]]


# ---- errors


def _lose(folder: str) -> None:
    """Rank 1 does not begin what it has launched. The others have got past everything, and wait for their device."""
    program = Program(folder)
    front_end, ones = program.collectives, np.ones(1000, np.float32)
    with program.streams.opened() as stream:
        front_end.allreduce(program.array(ones), name="first")
        stream.synchronize()
        if hvd.rank() == 1:
            program.hold(program.plane_stream)
        kept = front_end.allreduce_async(program.array(ones), name="kept")
        several = front_end.grouped_allreduce_async([program.array(ones)] * 2, name="several")
        result = front_end.allreduce(program.array(ones), name="x")
        copied = program.consumed(result, stream)
        del result
        until(lambda: not current().everyone.statistics().in_flight)
        reached("waiting")
        stream.synchronize()
    assert copied.on_device().size == 1000  # whatever it is
    assert all((hvd.poll(kept), hvd.poll(several)))
    errors = []
    for use in (
        lambda: hvd.synchronize(kept),
        lambda: hvd.synchronize(several),
        lambda: front_end.allreduce(program.array(ones), name="next"),
    ):
        with program.streams.opened(), pytest.raises(hvd.PeerLost) as raised:
            use()
        errors.append(raised.value)
    assert hvd.synchronize(kept) is None
    program.leave()
    raise errors[-1]


@pytest.mark.parametrize(
    ("number", "environ"),
    [(signal.SIGKILL, NEVER_SILENT), (signal.SIGSTOP, {"HVDLITE_PEER_TIMEOUT": "6"})],
    ids=["killed", "stopped"],
)
def test_a_peer_that_is_lost_after_the_launch(loaded_fakes: Fakes, number: int, environ: dict[str, str]) -> None:
    """No host waits, so only what a device still does keeps ranks watching each other."""
    with ProcessRanks(3, _lose, str(loaded_fakes.folder), environ=environ) as ranks:
        ranks.wait_for("waiting")
        ranks.send_signal(1, number)
        ranks.wait_for_end(0, 2)
        ranks.kill(1)
        outcomes = ranks.join()
    for rank in (0, 2):
        assert (outcomes[rank].error, outcomes[rank].details.get("rank")) == ("PeerLost", 1), outcomes[rank].output


def test_the_last_resort_does_not_count_what_the_caller_does_before(fakes: Fakes) -> None:
    with opened(fakes, 1) as group:
        plane = group.planes[0]
        array = group.array(plane, np.ones(1000, np.float32))
        spans = spans_of((array, array))
        first = plane.allreduce(spans, DType.FLOAT32, Sum, 1.0, 1.0)
        assert first is not None
        first.wait()
        assert plane._gpu is not None
        user, own = Stream(plane._gpu.context), plane._gpu.stream
        for stream in (user, own):
            fakes.cuda.fake_hold(stream.handle)
        plane.wait_for([plane.record(0, user.handle.value or 0)])
        launched = plane.allreduce(spans, DType.FLOAT32, Sum, 1.0, 1.0)
        assert launched is not None
        looks = []
        look = plane._look
        assert plane._watcher is not None
        plane._watcher._look = lambda: looks.append(1) or look()  # type: ignore[func-returns-value]
        plane._progress_timeout_s = 0.0
        until(lambda: len(looks) >= 2)
        assert plane.error is None
        fakes.cuda.fake_release(user.handle)
        until(lambda: plane.error is not None)
        fakes.cuda.fake_release(own.handle)
        with pytest.raises(hvd.HorovodInternalError, match="HVDLITE_PROGRESS_TIMEOUT"):
            launched.wait()
        assert launched.is_done
        user.close()
