"""Contexts, streams, events and memory, over the fake of CUDA's driver."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hvdlite.cuda import driver
from hvdlite.cuda.context import Context
from hvdlite.cuda.events import Events, latest
from hvdlite.cuda.memory import DeviceMemory, PinnedMemory, copy, device_of
from hvdlite.cuda.streams import Event, Stream
from hvdlite.errors import HorovodInternalError, NativeUnavailable, absence_of
from hvdlite.tensors.device import Device
from tests.gpu.fake import Fakes
from tests.gpu.streams import BlockingStream, DefaultStream

GREATEST_PRIORITY = -5  # of the fake; lower numbers come first


@pytest.fixture
def context(fakes: Fakes) -> Iterator[Context]:
    made = Context(1)
    yield made
    made.close()


@pytest.fixture
def stream(context: Context) -> Iterator[Stream]:
    made = Stream(context)
    yield made
    made.close()


def _code_of(child: int) -> int:
    """The exit code of a forked child, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_context_is_current_within_a_block_only(fakes: Fakes) -> None:
    first, second = Context(0), Context(1)
    assert fakes.cuda.fake_current_device() == -1
    with first.current():
        assert fakes.cuda.fake_current_device() == 0
        with second.current():
            assert fakes.cuda.fake_current_device() == 1
        with pytest.raises(KeyError), second.current():
            raise KeyError
        assert fakes.cuda.fake_current_device() == 0
        other = threading.Thread(target=lambda: found.append(fakes.cuda.fake_current_device()))
        found: list[int] = []
        other.start()
        other.join()
        assert found == [-1]
    assert fakes.cuda.fake_current_device() == -1
    for context in (first, first, second):
        context.close()
    with pytest.raises(HorovodInternalError, match="GPU 0 cannot be used: it is closed"), first.current():
        pass


def test_the_mode_of_captures_is_relaxed_within_a_block_only(fakes: Fakes) -> None:
    def exchanged(mode: int) -> int:
        held = ctypes.c_int(mode)
        driver.library().cuThreadExchangeStreamCaptureMode(ctypes.byref(held))
        return held.value

    of_program = 1
    context, before = Context(0), exchanged(of_program)
    with context.current():
        assert exchanged(driver.CAPTURE_RELAXED) == driver.CAPTURE_RELAXED
    with pytest.raises(KeyError), context.current():
        raise KeyError
    assert exchanged(before) == of_program
    context.close()


def test_a_forked_child_is_refused_and_closes_nothing(fakes: Fakes, context: Context, stream: Stream) -> None:
    event = Event(context)
    child = os.fork()
    if not child:
        code = 1
        try:
            event.record(stream.handle)
        except HorovodInternalError as error:
            before = fakes.held()
            event.close()
            stream.close()
            context.close()
            code = 0 if "fork" in str(error) and fakes.held() == before else 2
        finally:
            os._exit(code)
    assert _code_of(child) == 0
    event.close()


def test_a_stream_of_the_highest_priority_does_its_work_in_order(
    fakes: Fakes, context: Context, stream: Stream
) -> None:
    assert fakes.cuda.fake_priority(stream.handle) == GREATEST_PRIORITY
    array, last = fakes.array(np.zeros(1000, np.int32), 1), PinnedMemory(context, 4000)
    fakes.cuda.fake_hold(stream.handle)
    sources = [fakes.array(np.full(1000, value, np.int32), 1) for value in range(100)]
    for source in sources:
        copy(array.address, source.address, array.nbytes, stream)
    copy(last.address, array.address, array.nbytes, stream)
    assert (array.on_device() == 0).all()
    fakes.cuda.fake_release(stream.handle)
    stream.synchronize()
    assert (array.on_device() == 99).all()
    assert ctypes.string_at(last.address, last.nbytes) == array.on_device().tobytes()
    last.close()
    last.close()
    with pytest.raises(HorovodInternalError, match="the pinned memory on GPU 1 is closed"):
        last.address  # noqa: B018


def test_an_event_orders_two_streams_and_blocks_no_host(fakes: Fakes, context: Context, stream: Stream) -> None:
    other = Stream(context)
    source, between, target = (fakes.array(np.full(64, value, np.int16), 1) for value in (7, 0, 0))
    event, end = Event(context), Event(context)
    assert event.is_done  # never recorded
    fakes.cuda.fake_hold(stream.handle)
    copy(between.address, source.address, source.nbytes, stream)
    event.record(stream.handle)
    event.hold_back(other.handle)
    copy(target.address, between.address, source.nbytes, other)
    end.record(other.handle)
    assert not event.is_done
    assert not end.is_done
    fakes.cuda.fake_release(stream.handle)
    end.wait()
    assert event.is_done
    assert (target.on_device() == 7).all()
    event.record(other.handle)  # once more, for another stream
    event.wait()
    for each in (event, event, end, other):
        each.close()
    with pytest.raises(HorovodInternalError, match="the event on GPU 1 is closed"):
        event.record(stream.handle)
    with pytest.raises(HorovodInternalError, match="the stream on GPU 1 is closed"):
        other.synchronize()


def test_the_default_stream_waits_for_blocking_streams_and_they_for_it_but_hvdlites_do_not(
    fakes: Fakes, context: Context, stream: Stream
) -> None:
    blocking, default, event = BlockingStream(context), DefaultStream(context), Event(context)
    arrays = [fakes.array(np.full(10, number), 1) for number in range(4)]

    def pass_on(index: int, through: Stream) -> None:
        source, target = arrays[index : index + 2]
        copy(target.address, source.address, source.nbytes, through)

    fakes.cuda.fake_hold(blocking.handle)
    for index, each in enumerate((blocking, default, blocking)):
        pass_on(index, each)
    event.record(default.handle)
    stream.synchronize()
    assert not event.is_done
    fakes.cuda.fake_release(blocking.handle)
    event.wait()
    blocking.synchronize()
    assert not any(array.on_device().any() for array in arrays)
    with context.current():
        fakes.cuda.fake_hold(default.handle)
    pass_on(0, default)
    event.record(stream.handle)
    event.wait()
    event.record(blocking.handle)
    assert not event.is_done
    with context.current():
        fakes.cuda.fake_release(default.handle)
    default.synchronize()  # it still uses the arrays
    for each in (event, blocking):
        each.close()


def test_an_event_that_a_stream_waits_for_may_be_closed(fakes: Fakes, context: Context, stream: Stream) -> None:
    other, event = Stream(context), Event(context)
    source, target = fakes.array(np.full(64, 3, np.int8), 1), fakes.array(np.zeros(64, np.int8), 1)
    fakes.cuda.fake_hold(stream.handle)
    copy(source.address, target.address, 1, stream)
    event.record(stream.handle)
    event.hold_back(other.handle)
    event.close()
    copy(target.address, source.address, source.nbytes, other)
    fakes.cuda.fake_release(stream.handle)
    other.synchronize()
    assert target.on_device().tolist() == [0, *[3] * 63]
    other.close()


def test_memory_is_allocated_and_freed_in_the_order_of_a_stream(fakes: Fakes, stream: Stream) -> None:
    before = fakes.held()["allocations"]
    fakes.cuda.fake_hold(stream.handle)
    memory, target = DeviceMemory(stream, 100), fakes.empty(100, np.uint8, 1)
    memory.fill(9)
    copy(target.address, memory.address, 100, stream)
    memory.close()
    memory.close()
    assert memory.address == 0
    fakes.cuda.fake_release(stream.handle)
    stream.synchronize()
    assert (target.on_device() == 9).all()
    assert fakes.held()["allocations"] == before + 1


def test_the_device_of_an_address(fakes: Fakes, context: Context) -> None:
    array, pinned, plain = fakes.empty(10, np.float32, 1), PinnedMemory(context, 10), np.zeros(3)
    assert device_of(array.address) == device_of(array.address + 39) == Device("cuda", 1)
    assert device_of(fakes.empty(1, np.int8).address) == Device("cuda", 0)
    assert device_of(pinned.address) is None
    assert device_of(plain.ctypes.data) is None
    pinned.close()


def test_the_host_cannot_touch_the_memory_of_a_device(fakes: Fakes) -> None:
    """The premise of all other tests here: code that follows a device's address dies."""
    address = fakes.empty(10, np.float32).address
    child = os.fork()
    if not child:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(address, 1)
        os._exit(0)
    assert _code_of(child) == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("function", "status", "told"),
    [
        ("cuStreamCreateWithPriority", 2, r"cuStreamCreateWithPriority failed: CUDA_ERROR_OUT_OF_MEMORY \(2\).*memory"),
        ("cuStreamCreateWithPriority", 700, r"CUDA_ERROR_ILLEGAL_ADDRESS \(700\).*CUDA_LAUNCH_BLOCKING=1"),
        ("cuStreamCreateWithPriority", 999, r"failed: an unknown error \(999\)"),
    ],
)
def test_an_error_names_the_call_and_what_to_do(
    fakes: Fakes, context: Context, function: str, status: int, told: str
) -> None:
    fakes.fail(function, status)
    with pytest.raises(HorovodInternalError, match=told):
        Stream(context)
    assert fakes.cuda.fake_current_device() == -1


def test_calls_without_a_context_and_with_old_handles_are_refused(fakes: Fakes) -> None:
    """By the fake, as by CUDA: so the tests above would fail without the care that they show."""
    handle = ctypes.c_void_p()
    with pytest.raises(HorovodInternalError, match="INVALID_CONTEXT"):
        driver.library().cuEventCreate(ctypes.byref(handle), 2)
    context = Context(0)
    event = Event(context)
    old = event.handle
    event.close()
    with pytest.raises(HorovodInternalError, match="INVALID_HANDLE"):
        driver.library().cuEventSynchronize(old)
    context.close()


def test_a_gpu_that_is_not_there_is_named(fakes: Fakes) -> None:
    assert driver.count() == 2
    with pytest.raises(HorovodInternalError, match=r"cuDeviceGet failed.*CUDA_VISIBLE_DEVICES and torch.cuda"):
        Context(2)


@pytest.mark.parametrize(
    ("status", "told"), [(100, "no GPU is visible; look at nvidia-smi"), (803, r"\(803\).*fits its kernel module")]
)
def test_a_driver_that_cannot_be_initialized(fakes: Fakes, status: int, told: str) -> None:
    fakes.fail("cuInit", status)
    assert "cannot be initialized" in absence_of(driver.library)
    fakes.forget()
    fakes.fail("cuInit", status)
    with pytest.raises(NativeUnavailable, match=told):
        driver.library()


def test_a_missing_driver(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SONAME", "libcuda-of-nobody.so.1")
    assert "libcuda-of-nobody.so.1: cannot open" in absence_of(driver.library)
    assert "docker run --gpus all" in absence_of(driver.library)


def test_events_are_used_again_when_nobody_asks_for_their_moment(fakes: Fakes) -> None:
    events = Events(0)
    streams = [Stream(events.context) for _ in range(2)]
    handles = [stream.handle.value or 0 for stream in streams]
    moments = [events.record(handle) for handle in (handles[0], handles[1], handles[0])]
    assert latest(moments) == [moments[2], moments[1]]
    thread = threading.Thread(target=lambda: moments.append(events.record(handles[0])))
    thread.start()
    thread.join()
    assert latest(moments) == [moments[2], moments[1], moments[3]]
    before = fakes.held()["events"]
    for _ in range(3):
        del moments[0]
        moments.append(events.record(handles[1]))
    assert fakes.held()["events"] == before
    for stream in streams:
        stream.close()
    events.close()
