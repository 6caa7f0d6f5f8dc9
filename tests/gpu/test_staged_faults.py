"""What goes wrong while tensors go through the memory of the host: which error, when, and that all is given back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError, PeerLost
from hvdlite.members.membership import Membership
from hvdlite.planes.base import DataPlane
from hvdlite.planes.staged.pipeline import BUFFERS
from hvdlite.planes.staged.plane import StagedPlane
from hvdlite.planes.staged.staged import Staged
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.joined.shm import PLANE as SHM
from tests.gpu.fake import Fakes, GpuArray
from tests.gpu.planes import spans_of
from tests.gpu.staging import FLOATS, PIECE, One, waiting
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S, until

LOST = PeerLost(11, "elsewhere", "its process ended")


def _error_of(work: Callable[[], object]) -> HorovodInternalError:
    with pytest.raises(HorovodInternalError) as raised:
        work()
    return raised.value


def _begin(plane: DataPlane, array: GpuArray) -> Staged:
    staged = plane.allreduce(spans_of((array, array)), DType.FLOAT32, Sum, 1.0, 1.0)
    assert isinstance(staged, Staged)
    return staged


def _assert_aborted(one: One) -> None:
    array = one.fakes.array(np.ones(3, np.float32))
    for call in (lambda: one.doubled(array), one.plane.barrier, lambda: one.plane.zeros(8)):
        assert _error_of(call) is LOST


def test_an_abort_while_the_callers_stream_holds_back_the_first_copy(one: One) -> None:
    """Who asks hears of it at once. What is given back waits for the GPU, also when the plane is closed meanwhile."""
    values = np.arange(3 * FLOATS, dtype=np.float32)
    array = one.fakes.array(values)
    one.hold(one.user)
    one.after_user()
    staged = one.doubled(array)
    consumer = threading.Thread(target=staged.hold_back, args=(one.user.handle.value,))
    consumer.start()
    with waiting(staged) as errors:
        assert staged.error is None
        one.plane.abort(LOST)
        consumer.join(PATIENCE_S)
        assert not consumer.is_alive()
        assert staged.error is LOST
        _assert_aborted(one)
        one.plane.close()
        assert not staged.is_over
        one.release(one.user)
    assert errors == [LOST]
    assert (array.on_device() == values).all()
    one.user.synchronize()


def far(rank: int) -> Membership:
    """One of two ranks, 10 and 11 of the job, each of which has a host, and so a first GPU, for itself."""
    return replace(member(rank, "ab"), ranks=(10, 11))


def test_an_abort_while_the_host_waits_for_a_peer(fakes: Fakes) -> None:
    """Some pieces are done, and others on their way down. After the wait nothing is written any more."""
    with SHM.open(2, PATIENCE_S) as hosts:
        planes = [StagedPlane(far(rank), host, piece_bytes=PIECE) for rank, host in enumerate(hosts)]
        array, other = (fakes.array(np.ones(10 * FLOATS, np.float32)) for _ in range(2))
        staged = _begin(planes[0], array)
        part = _begin(planes[1], other)
        part.pieces = list(part.pieces)[:4]
        with waiting(staged) as errors, waiting(part):
            until(lambda: part.is_over)
            planes[0].abort(LOST)
        assert errors == [LOST]
        array.write(np.full(10 * FLOATS, 7, np.float32))
        gpu = planes[0]._gpu
        assert gpu is not None
        for stream in (gpu.down, gpu.up):
            stream.synchronize()
        assert (array.on_device() == 7).all()
        assert _error_of(lambda: _begin(planes[0], array)) is LOST
        for plane in planes:
            plane.close()


def test_an_abort_while_pieces_go_up(one: One) -> None:
    array = one.fakes.array(np.ones(9 * FLOATS, np.float32))
    one.hold(one.gpu.up)
    staged = one.doubled(array)
    with waiting(staged) as errors:
        until(lambda: len(one.host.entered) == BUFFERS)
        one.plane.abort(LOST)
        assert staged.error is LOST
        assert not staged.is_over
        one.release(one.gpu.up)
    assert errors == [LOST]
    assert len(one.host.entered) == BUFFERS


def test_a_failure_is_raised_once_nothing_is_copied_any_more(one: One) -> None:
    array = one.fakes.array(np.ones(9 * FLOATS, np.float32))
    one.host.failures[1] = LOST
    one.hold(one.gpu.up)
    staged = one.doubled(array)
    with waiting(staged) as errors:
        until(lambda: one.plane.error is not None or len(one.host.entered) == 2)
        time.sleep(0.05)  # a lower bound
        assert not staged.is_over
        one.release(one.gpu.up)
    assert errors == [LOST]
    assert one.plane.error is LOST


def test_what_was_done_before_an_abort_keeps_its_result(one: One) -> None:
    array = one.fakes.array(np.ones(5, np.float32))
    staged = one.doubled(array)
    one.hold(one.gpu.up)
    with waiting(staged) as errors:
        until(lambda: staged._end is not None)
        one.plane.abort(LOST)
        assert staged.error is LOST  # until the GPU is done, nobody can tell
        one.release(one.gpu.up)
    assert errors == []
    assert staged.error is None
    assert (array.on_device() == 2).all()


def test_after_an_abort_new_planes_work_and_everything_was_given_back(fakes: Fakes) -> None:
    """The fixture holds that no stream, event or context is left."""
    before = fakes.held()["allocations"]
    for _ in range(3):
        with SHM.open(2, PATIENCE_S) as hosts:
            planes = [StagedPlane(member(rank, "aa"), host) for rank, host in enumerate(hosts)]
            staged = _begin(planes[0], fakes.array(np.ones(10, np.float32)))
            for plane in planes:
                plane.abort(LOST)
            assert _error_of(staged.wait) is LOST
            for plane in planes:
                plane.close()
        with SHM.open(2, PATIENCE_S) as hosts:

            def train(rank: int, hosts: object = hosts) -> None:
                plane = StagedPlane(member(rank, "aa"), hosts[rank])  # type: ignore[index]
                for step in range(100):
                    array = fakes.array(np.full(10, rank + step, np.float32), rank)
                    _begin(plane, array).wait()
                    assert (array.on_device() == 2 * step + 1).all()
                plane.close()

            thread_ranks(2, train)
        del staged
        assert fakes.held()["allocations"] == before


@pytest.mark.parametrize(
    ("function", "is_at_once"),
    [
        ("cuMemHostAlloc", True),
        ("cuStreamCreateWithPriority", True),
        ("cuEventRecord", False),
        ("cuEventSynchronize", False),
    ],
)
def test_a_call_that_fails_ends_the_plane(fakes: Fakes, function: str, is_at_once: bool) -> None:
    with SHM.open(1, PATIENCE_S) as hosts:
        plane = StagedPlane(replace(member(0, "a"), ranks=(10,)), hosts[0])
        array = fakes.array(np.ones(3, np.float32))
        if not is_at_once:
            _begin(plane, array).wait()
        fakes.fail(function, 2)
        error = _error_of(lambda: _begin(plane, array) if is_at_once else _begin(plane, array).wait())
        assert function in str(error)
        assert _error_of(lambda: _begin(plane, array)) is error
        assert _error_of(hosts[0].barrier) is error
        plane.close()


def test_a_peer_that_does_not_come_is_ended_by_the_last_resort(fakes: Fakes) -> None:
    with SHM.open(2, 0.3) as hosts:
        planes = [StagedPlane(far(rank), host) for rank, host in enumerate(hosts)]
        array = fakes.array(np.ones(3, np.float32))
        error = _error_of(_begin(planes[0], array).wait)
        assert "HVDLITE_PROGRESS_TIMEOUT" in str(error)
        for plane in planes:
            plane.close()


def test_a_second_gpu_of_one_rank_is_refused(one: One) -> None:
    with pytest.raises(
        HorovodInternalError, match=r"a tensor is on GPU 1, but rank 10 uses GPU 0 in this group; .*set_device"
    ):
        one.doubled(one.fakes.array(np.ones(3, np.float32), 1))


def test_a_closed_plane_and_a_fork_are_refused(one: One) -> None:
    array = one.fakes.array(np.ones(3, np.float32))
    one.doubled(array).wait()
    child = os.fork()
    if not child:
        code = 1
        try:
            one.doubled(array)
        except HorovodInternalError as error:
            one.plane.close()
            code = 0 if "forked child" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    one.plane.close()
    with pytest.raises(HorovodInternalError, match="the plane is closed"):
        one.doubled(array)
