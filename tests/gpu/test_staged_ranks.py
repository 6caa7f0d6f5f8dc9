"""Ranks that are processes, whose tensors on GPUs go through the memory of the host: when they do, and how it ends."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.cuda.presence import KIND
from hvdlite.planes.nccl import library
from hvdlite.planes.staged.plane import StagedPlane
from hvdlite.session import current
from hvdlite.settings import Start
from tests.gpu.fake import Fakes
from tests.gpu.program import Gpu, Program
from tests.gpu.test_ranks import SETTING
from tests.harness import ProcessRanks, process_ranks, reached
from tests.harness.alarms import raise_in_a_wait, signal_to_another_thread
from tests.harness.patience import NEVER_SILENT, STALLED, until

STAGED = {**STALLED, SETTING: "staged"}
ONES = np.ones(1000, np.float32)


def _plane(program: Gpu) -> StagedPlane:
    assert isinstance(program.plane, StagedPlane)
    return program.plane


def _in_need_of_the_host(folder: str) -> None:
    """The stream that one rank's tensor comes from waits for a result on CPUs, which is submitted after the tensor."""
    program = Program(folder)
    front_end = program.collectives
    for waiting in range(hvd.size()):
        with program.streams.opened() as stream:
            array = program.produced(ONES, stream) if waiting != hvd.rank() else program.array(ONES)
            if waiting == hvd.rank():
                program.hold(stream)
            handle = front_end.allreduce_async(array, name="of the gpu", op=hvd.Sum)
            until(lambda handle=handle: handle.is_done)  # taken, that is
            assert hvd.allreduce(np.ones(3), name="of the host", op=hvd.Sum)[0] == hvd.size()
            if waiting == hvd.rank():
                assert not hvd.poll(handle)
                program.release(stream)
            copied = program.consumed(hvd.synchronize(handle), stream)
            stream.synchronize()
            assert (copied.on_device() == hvd.size()).all()
    program.leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_a_gpu_has_not_come_to_holds_back_nothing_on_cpus(loaded_fakes: Fakes, size: int) -> None:
    for outcome in process_ranks(size, _in_need_of_the_host, str(loaded_fakes.folder), environ=STAGED):
        outcome.result()


def _lose(folder: str, where: str) -> None:
    """Rank 1 never comes to its part. The others wait for it, or for their own streams."""
    program = Program(folder)
    front_end = program.collectives
    with program.streams.opened() as stream:
        front_end.allreduce(program.array(ONES), name="first")
        stream.synchronize()
        until(lambda: not _plane(program)._taken)
        before = program.fakes.held()["allocations"]
        if hvd.rank() == 1 or where == "copying down":
            program.hold(stream)
        array = program.array(ONES)
        handles = [front_end.allreduce_async(array, name=name) for name in ("x", "never asked for")]
        until(lambda: all(handle.is_done for handle in handles))  # taken, that is
        reached("waiting")
        with pytest.raises(hvd.PeerLost) as raised:
            hvd.synchronize(handles.pop(0))
        error = raised.value.with_traceback(None)  # whose frames have tensors
        del raised
        with pytest.raises(hvd.PeerLost):
            front_end.allreduce(array, name="next")
        assert hvd.poll(handles.pop())
        assert (array.on_device() == 1).all()
        program.release(stream)
        until(lambda: not _plane(program)._taken)
        del array
        until(lambda: program.fakes.held()["allocations"] <= before)
    program.leave()
    assert program.fakes.held()["allocations"] == 0
    raise error


@pytest.mark.parametrize("where", ["copying down", "reducing"])
def test_a_rank_that_is_killed_is_lost_on_all_others(loaded_fakes: Fakes, where: str) -> None:
    environ = {**NEVER_SILENT, SETTING: "staged"}
    with ProcessRanks(3, _lose, str(loaded_fakes.folder), where, environ=environ) as ranks:
        ranks.wait_for("waiting")
        ranks.kill(1)
        outcomes = ranks.join()
    for rank in (0, 2):
        assert (outcomes[rank].error, outcomes[rank].details.get("rank")) == ("PeerLost", 1), outcomes[rank].output


class _Interrupt(Exception):
    pass


def _fail(*_: Any) -> None:
    raise _Interrupt


def _interrupted(folder: str) -> None:
    program = Program(folder)
    front_end = program.collectives
    with program.streams.opened() as stream:
        program.hold(stream)
        handle = front_end.allreduce_async(program.produced(ONES, stream), name="x", op=hvd.Sum)
        until(lambda: handle.is_done)
        raise_in_a_wait(_Interrupt, 0.05)
        with pytest.raises(_Interrupt):
            hvd.synchronize(handle)
        signal.signal(signal.SIGUSR1, _fail)
        sender = signal_to_another_thread(signal.SIGUSR1)
        with pytest.raises(_Interrupt):
            hvd.synchronize(handle)
        sender.join()
        assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == hvd.size()
        program.release(stream)
        copied = program.consumed(hvd.synchronize(handle), stream)
        stream.synchronize()
        assert (copied.on_device() == hvd.size()).all()
    program.leave()


def test_a_signal_handler_ends_the_wait_for_the_callers_stream(loaded_fakes: Fakes) -> None:
    """And the handle can be synchronized again."""
    for outcome in process_ranks(2, _interrupted, str(loaded_fakes.folder), environ=STAGED):
        outcome.result()


def _leave_behind_a_held_stream(folder: str) -> None:
    """Afterwards another session begins in the same process."""
    program = Program(folder)
    front_end = program.collectives
    with program.streams.opened() as stream:
        front_end.allreduce(program.array(ONES), name="first")
        program.hold(stream)
        handle = front_end.allreduce_async(program.array(ONES), name="x")
        until(lambda: bool(_plane(program)._taken))
        hvd.barrier()
        hvd.shutdown()
        with pytest.raises(hvd.HorovodInternalError, match="shut down while a batch was running"):
            hvd.synchronize(handle)
        assert program.fakes.held()["streams"] == 3  # two of the plane
        program.release(stream)
        del handle
        hvd.init()
        for step in range(100):
            total = front_end.allreduce(program.array(ONES * step + hvd.rank()), name="step", op=hvd.Sum)
            copied = program.consumed(total, stream)
            stream.synchronize()
            assert (copied.on_device() == 2 * step + 1).all()
        del total, copied
        hvd.barrier()
    program.leave()
    assert program.fakes.held()["allocations"] == 0


def test_a_session_that_ends_before_a_gpu_leaves_the_rest_to_the_thread_that_waits(loaded_fakes: Fakes) -> None:
    environ = {**STAGED, "HVDLITE_SHUTDOWN_TIMEOUT": "0.5"}
    for outcome in process_ranks(2, _leave_behind_a_held_stream, str(loaded_fakes.folder), environ=environ):
        outcome.result()


def _without_nccl(folder: str) -> list[str]:
    """Rank 1 of 3 has no NCCL. Returns the plane of all, and of the ranks that have it."""
    if Start.read().rank == 1:
        library.apparent_absence = lambda: "there is no NCCL"
    gpu = Gpu(folder)
    others = hvd.add_process_set([0, 2])
    front_end: Any = gpu.collectives
    for process_set in (hvd.global_process_set, others):
        if process_set.included():
            for _ in range(2):
                total = front_end.allreduce(gpu.array(ONES), op=hvd.Sum, process_set=process_set)
                assert (total.on_device() == process_set.size()).all()
    planes = [current().everyone.statistics().planes[KIND]]
    if others.included():
        planes.append(current().group_of(others).statistics().planes[KIND])
    hvd.barrier()
    gpu.leave()
    return planes


def test_ranks_without_nccl_make_their_groups_go_through_the_host(loaded_fakes: Fakes) -> None:
    environ = {**STALLED, "HVDLITE_LOG_LEVEL": "info"}
    outcomes = process_ranks(3, _without_nccl, str(loaded_fakes.folder), environ=environ)
    assert [outcome.result() for outcome in outcomes] == [["staged", "nccl"], ["staged"], ["staged", "nccl"]]
    warning = "tensors on GPUs move through host memory, which is slow, because rank(s) 1 have no NCCL: install"
    assert [outcome.output.count(warning) for outcome in outcomes] == [1, 0, 0]
    assert "data plane shm, staged for cuda, " in outcomes[0].output


def _set_apart(folder: str) -> str:
    with pytest.raises(hvd.HorovodInternalError) as raised:
        Gpu(folder)
    return str(raised.value)


def test_ranks_that_set_different_planes_are_refused(loaded_fakes: Fakes) -> None:
    by_rank = {0: {SETTING: "staged"}}
    for outcome in process_ranks(2, _set_apart, str(loaded_fakes.folder), environ_by_rank=by_rank):
        assert "different values of HVDLITE_GPU_PLANE: staged on rank(s) 0; auto on rank(s) 1" in outcome.result()
