"""While a program captures a CUDA graph, collectives are refused, and hvdlite does not break the capture."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Event, Stream
from tests.gpu.fake import Fakes
from tests.gpu.program import Program
from tests.gpu.streams import BlockingStream
from tests.harness import process_ranks
from tests.harness.patience import STALLED, until

SUBMIT = "a CUDA graph captures the current stream, and collectives of hvdlite cannot be part of one; submit the tensor"
WAIT = "a CUDA graph captures the current stream, which cannot wait for a collective outside of the graph; synchronize"


@contextmanager
def _captured(program: Program, stream: Stream) -> Iterator[None]:
    """A capture that nothing invalidates."""
    program.fakes.cuda.fake_begin_capture(stream.handle)
    yield
    assert program.fakes.cuda.fake_end_capture(stream.handle), "the capture was invalidated"


def _forms(front_end: Any) -> dict[str, Callable[[Any], Any]]:
    forms: dict[str, Callable[[Any], Any]] = {
        form: getattr(front_end, form)
        for form in ("allreduce", "allreduce_", "allreduce_async", "allgather", "alltoall", "reducescatter")
    }
    forms["broadcast"] = lambda array, **keywords: front_end.broadcast(array, 0, **keywords)
    forms["grouped"] = lambda array, **keywords: front_end.grouped_allreduce([array, array], **keywords)
    return forms


def _capturing(folder: str) -> list[str]:
    program, wrong = Program(folder), []
    front_end, size = program.collectives, hvd.size()
    ones = np.ones(6, np.float32)

    def refusal(call: Callable[[], Any], told: str) -> None:
        with pytest.raises(ValueError) as raised:
            call()
        if not str(raised.value).startswith(told):
            wrong.append(str(raised.value))

    def elsewhere() -> None:
        with program.streams.opened():
            total = front_end.allreduce(program.array(ones), op=hvd.Sum, name="elsewhere")
        totals.append(total.on_device().tolist())

    with program.streams.opened() as stream:
        passed = [front_end.allreduce_async(program.array(ones), op=hvd.Sum, name=f"passed {n}") for n in range(2)]
        until(lambda: all(each.is_done for each in passed))
        own = program.plane_stream
        own.synchronize()
        program.hold(own)
        handle = front_end.allreduce_async(program.array(ones), op=hvd.Sum, name="x")
        group = front_end.grouped_allreduce_async([program.array(ones)] * 2, op=hvd.Sum, name="group")
        until(lambda: handle.is_done and group.is_done)
        totals: list[list[float]] = []
        with _captured(program, stream):
            for form, call in _forms(front_end).items():
                for name in (form, "passed 0"):
                    refusal(lambda call=call, name=name: call(program.array(ones), name=name), SUBMIT)
            refusal(lambda: hvd.synchronize(handle), WAIT)
            refusal(lambda: hvd.synchronize(group), WAIT)
            assert not any(map(hvd.poll, (handle, group)))
            hvd.synchronize(passed[0])
            assert hvd.allreduce(ones, op=hvd.Sum, name="of the host").tolist() == [size] * 6
            program.release(own)
            until(lambda: hvd.poll(handle) and hvd.poll(group))
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert totals == [[size] * 6]
        for result in (hvd.synchronize(passed[1]), hvd.synchronize(handle), *hvd.synchronize(group)):
            stream.synchronize()
            assert result.on_device().tolist() == [size] * 6
        for form, call in _forms(front_end).items():
            call(program.array(ones), name=form)
    with program.streams.default():
        blocking = BlockingStream(program.streams.context)
        with _captured(program, blocking):
            refusal(lambda: front_end.allreduce(program.array(ones), name="default"), SUBMIT)
        front_end.allreduce(program.array(ones), name="default")
        blocking.close()
    hvd.barrier()
    program.leave()
    return wrong


def test_a_captured_stream_need_not_wait_for_what_has_passed(fakes: Fakes) -> None:
    context = Context(0)
    stream, event = Stream(context), Event(context)
    event.record(stream.handle)
    event.wait()
    fakes.cuda.fake_begin_capture(stream.handle)
    event.hold_back_callers(stream.handle)
    assert fakes.cuda.fake_end_capture(stream.handle)
    for each in (event, stream, context):
        each.close()


@pytest.mark.parametrize("size", [1, 2])
def test_a_capture_goes_on_and_the_session_too(loaded_fakes: Fakes, size: int) -> None:
    for outcome in process_ranks(size, _capturing, str(loaded_fakes.folder), environ=STALLED):
        assert outcome.result() == []
