"""What goes wrong in NCCL, or with a peer: which error, that no wait hangs, and that everything is given back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from hvdlite.cuda.context import Context
from hvdlite.cuda.memory import copy
from hvdlite.cuda.presence import KIND
from hvdlite.cuda.streams import Stream
from hvdlite.errors import HorovodInternalError, PeerLost
from hvdlite.planes.nccl import plane as nccl_plane
from hvdlite.planes.nccl.launched import Launched
from hvdlite.planes.nccl.offers import exchange
from hvdlite.planes.nccl.plane import NcclPart, NcclPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import DType, Sum
from tests.gpu.fake import Fakes, GpuArray
from tests.gpu.planes import Planes, opened, spans_of
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

LOST = PeerLost(11, "elsewhere", "its process ended")


def _begin(plane: NcclPlane, array: GpuArray) -> Launched:
    """Launches an all-reduce; what it returns keeps the array."""
    launched = plane.allreduce(spans_of((array, array)), DType.FLOAT32, Sum, 1.0, 1.0)
    assert launched is not None
    launched.array = array  # type: ignore[attr-defined]
    return launched


def _ones(group: Planes, plane: NcclPlane) -> GpuArray:
    return group.array(plane, np.ones(1000, np.float32))


def _warm_up(group: Planes) -> None:
    """Makes the communicator."""
    group.run(lambda plane: _begin(plane, _ones(group, plane)).wait())


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _error_of(work: Callable[[], object]) -> HorovodInternalError:
    with pytest.raises(HorovodInternalError) as raised:
        work()
    return raised.value


def test_launches_return_before_the_gpu_begins_and_keep_their_order(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        _warm_up(group)

        def work(plane: NcclPlane) -> None:
            assert plane._gpu is not None
            fakes.cuda.fake_hold(plane._gpu.stream.handle)
            array = _ones(group, plane)
            launched = [_begin(plane, array) for _ in range(20)]
            assert not any(each.event.is_done for each in launched)
            user = Stream(plane._gpu.context)  # of a program that uses the result and never blocks the host
            result = group.like(plane, array)
            launched[-1].event.hold_back(user.handle)
            copy(result.address, array.address, array.nbytes, user)
            fakes.cuda.fake_release(plane._gpu.stream.handle)
            user.synchronize()
            assert (result.on_device() == 2.0**20).all()
            for each in launched:
                each.wait()
            user.close()

        group.run(work)


def test_events_are_used_again(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        _warm_up(group)
        before = fakes.held()["events"]

        def work(plane: NcclPlane) -> None:
            array = group.array(plane, np.zeros(10, np.float32))
            for _ in range(100):
                _begin(plane, array).wait()

        group.run(work)
        assert fakes.held()["events"] == before == 2


def test_an_abort_ends_the_wait_for_peers_that_do_not_come(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        plane = group.planes[0]
        of_host = plane._of_host
        assert of_host is not None
        is_waiting, allgather = threading.Event(), of_host.allgather
        of_host.allgather = lambda streams: is_waiting.set() or allgather(streams)  # type: ignore[method-assign]
        abort = threading.Thread(target=lambda: is_waiting.wait(PATIENCE_S) and plane.abort(LOST))
        abort.start()
        assert _error_of(lambda: _begin(plane, _ones(group, plane))) is LOST
        assert of_host.error is LOST
        abort.join()


def test_an_abort_just_before_the_wait_for_peers_ends_it_too(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        plane = group.planes[0]
        offer, of_host = plane._offer, plane._of_host
        assert of_host is not None
        plane._offer = lambda events: [offer(events), plane.abort(LOST)][0]  # type: ignore[method-assign,return-value]
        of_host.allgather = pytest.fail  # type: ignore[method-assign]
        assert _error_of(lambda: _begin(plane, _ones(group, plane))) is LOST


def _only_offers(plane: NcclPlane) -> None:
    """What a rank does that never makes its communicator."""
    assert plane._of_host is not None
    exchange(plane._offer(plane._events_of(1)), plane._of_host)


def test_an_abort_ends_the_wait_for_peers_that_stop_before_they_connect(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        plane = group.planes[0]

        def work(each: NcclPlane) -> None:
            if each is plane:
                assert _error_of(lambda: _begin(plane, _ones(group, plane))) is LOST
                return
            _only_offers(each)
            _until(lambda: plane._watcher is not None)
            plane.abort(LOST)

        group.run(work)
        _until(lambda: fakes.held()["communicators"] == 0)


def test_an_abort_ends_a_kernel_that_hangs_and_all_that_waits_for_it(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        _warm_up(group)
        plane = group.planes[0]  # rank 1 launches nothing more
        assert plane._gpu is not None
        array = _ones(group, plane)
        launched = [_begin(plane, array), _begin(plane, array)]
        user = Stream(plane._gpu.context)
        launched[1].event.hold_back(user.handle)
        is_over = threading.Event()
        program = threading.Thread(target=lambda: (user.synchronize(), is_over.set()))
        program.start()
        errors: list[HorovodInternalError] = []
        waiters = [threading.Thread(target=lambda each=each: errors.append(_error_of(each.wait))) for each in launched]
        waiters[0].start()
        assert not is_over.wait(0.05)
        plane.abort(LOST)
        waiters[0].join(PATIENCE_S)
        waiters[1].start()
        for thread in (waiters[1], program):
            thread.join(PATIENCE_S)
        assert is_over.is_set()
        assert errors == [LOST, LOST]
        assert _error_of(lambda: _begin(plane, array)) is LOST
        assert _error_of(plane.barrier) is LOST
        assert _error_of(lambda: plane.zeros(8)) is LOST
        _until(lambda: fakes.held()["communicators"] == 1)
        group.planes[1].abort(LOST)
        user.close()


def test_after_an_abort_new_planes_work_and_everything_was_given_back(fakes: Fakes) -> None:
    """The fixture holds that no stream, event, context or communicator is left."""
    for _ in range(3):
        with opened(fakes, 2) as group:
            _warm_up(group)
            fakes.nccl.fake_hang(1)
            plane = group.planes[0]
            launched = _begin(plane, _ones(group, plane))
            for each in group.planes:
                each.abort(LOST)
            assert _error_of(launched.wait) is LOST
        with opened(fakes, 2) as group:

            def train(plane: NcclPlane, group: Planes = group) -> None:
                for step in range(100):
                    array = group.array(plane, np.full(10, plane.rank + step, np.float32))
                    _begin(plane, array).wait()
                    assert (array.on_device() == 2 * step + 1).all()

            group.run(train)


@pytest.mark.parametrize(("status", "told"), [(6, "a remote error"), (3, "an internal error"), (1, "a CUDA error")])
def test_an_error_of_nccls_own_ends_the_plane(fakes: Fakes, status: int, told: str) -> None:
    with opened(fakes, 2) as group:
        _warm_up(group)
        plane = group.planes[0]
        fakes.nccl.fake_fail_later(status)
        error = _error_of(_launched_before_it_runs(group, plane))
        assert f"a collective on rank 10 of NCCL 2.32.3 failed: {told}" in str(error)
        assert "NCCL's last error: a fake error on the way" in str(error)
        assert _error_of(lambda: _begin(plane, _ones(group, plane))) is error
        group.planes[1].abort(LOST)


def _launched_before_it_runs(group: Planes, plane: NcclPlane) -> Callable[[], None]:
    """Launches a collective, which goes on then; returns the wait for it."""
    assert plane._gpu is not None
    stream = plane._gpu.stream.handle
    group.fakes.cuda.fake_hold(stream)
    launched = _begin(plane, _ones(group, plane))
    group.fakes.cuda.fake_release(stream)
    return launched.wait


@pytest.mark.parametrize("is_launched", [True, False], ids=["launched", "perhaps still in the launch"])
def test_an_error_that_may_be_the_loss_of_a_peer_waits_for_the_news_of_it(fakes: Fakes, is_launched: bool) -> None:
    with opened(fakes, 2, grace_s=4 * PATIENCE_S) as group:
        _warm_up(group)
        plane = group.planes[0]
        gpu = plane._gpu
        assert gpu is not None

        def bring_the_news() -> None:
            _until(lambda: gpu.communicator._failing_since is not None)
            assert plane._error is None
            plane.abort(LOST)

        fakes.nccl.fake_fail_later(6)
        news = threading.Thread(target=bring_the_news)
        news.start()
        if is_launched:
            assert _error_of(_launched_before_it_runs(group, plane)) is LOST
        else:
            assert _error_of(lambda: _begin(plane, _ones(group, plane)).wait()) is LOST
        news.join()
        group.planes[1].abort(LOST)


def test_a_collective_that_never_ends_is_ended_by_the_last_resort(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        _warm_up(group)
        fakes.nccl.fake_hang(1)
        plane = group.planes[0]
        launched = _begin(plane, _ones(group, plane))
        plane._progress_timeout_s = 0.1  # from now on, as to launch may take long on a busy machine
        error = _error_of(launched.wait)
        assert "a collective on rank 10 has not ended within HVDLITE_PROGRESS_TIMEOUT" in str(error)
        group.planes[1].abort(error)


def test_a_communicator_that_is_never_made_is_ended_by_the_last_resort(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        plane = group.planes[0]
        plane._progress_timeout_s = 0.3  # not of what comes before

        def work(each: NcclPlane) -> None:
            if each is plane:
                error = _error_of(lambda: _begin(plane, _ones(group, plane)))
                assert "connecting the ranks' GPUs on rank 10 has not begun" in str(error)
            else:
                _only_offers(each)

        group.run(work)
        _until(lambda: fakes.held()["communicators"] == 0)


@pytest.mark.parametrize("function", ["ncclCommInitRankConfig", "ncclAllReduce", "ncclGroupEnd", "cuEventRecord"])
def test_a_call_that_fails_ends_the_plane(fakes: Fakes, function: str) -> None:
    with opened(fakes, 1) as group:
        plane = group.planes[0]
        fakes.fail(function, 400 if function.startswith("cu") else 5)
        error = _error_of(lambda: _begin(plane, _ones(group, plane)))
        assert function in str(error)
        assert "set_device(hvd.local_rank())" in str(error) or function == "cuEventRecord"
        assert _error_of(lambda: _begin(plane, _ones(group, plane))) is error


def test_a_question_that_fails_is_the_end_of_the_collective(fakes: Fakes) -> None:
    """Whoever polls is told to synchronize, and gets the error there."""
    with opened(fakes, 1) as group:
        _warm_up(group)
        plane = group.planes[0]
        assert plane._gpu is not None
        fakes.cuda.fake_hold(plane._gpu.stream.handle)
        launched = _begin(plane, _ones(group, plane))
        assert not launched.is_done
        fakes.fail("cuEventQuery", 700)
        assert launched.is_done
        assert "cuEventQuery failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in str(launched.error)
        fakes.cuda.fake_release(plane._gpu.stream.handle)
        assert _error_of(launched.wait) is launched.error


def test_a_second_gpu_of_one_rank_is_refused(fakes: Fakes) -> None:
    with opened(fakes, 1) as group:
        plane = group.planes[0]
        _begin(plane, fakes.array(np.ones(3, np.float32), 1)).wait()
        contexts = fakes.held()["contexts"]
        with pytest.raises(
            HorovodInternalError, match=r"a tensor is on GPU 0, but rank 10 uses GPU 1 in this group; .*set_device"
        ):
            _begin(plane, fakes.array(np.ones(3, np.float32), 0))
        assert fakes.held()["contexts"] == contexts  # and not touched


def test_a_closed_plane_and_a_fork_are_refused(fakes: Fakes) -> None:
    with opened(fakes, 1) as group:
        plane = group.planes[0]
        array = _ones(group, plane)
        _begin(plane, array).wait()
        child = os.fork()
        if not child:
            code = 1
            try:
                _begin(plane, array)
            except HorovodInternalError as error:
                plane.close()
                code = 0 if "forked child" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        plane.close()
        with pytest.raises(HorovodInternalError, match="the plane is closed"):
            _begin(plane, array)


def test_an_abort_before_the_first_collective(fakes: Fakes) -> None:
    with opened(fakes, 2) as group:
        group.planes[0].abort(LOST)
        assert _error_of(lambda: _begin(group.planes[0], _ones(group, group.planes[0]))) is LOST


@pytest.mark.parametrize("address", [None, 7, ["x"], "x" * 401])
def test_an_address_that_is_none(fakes: Fakes, address: object) -> None:
    part = NcclPart(member(1, "aa"), Settings())
    with pytest.raises(HorovodInternalError, match="a rank published no valid address of NCCL"):
        part.connect([address, ""], Scope())
    part.close()


def test_an_address_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_plane, "apparent_absence", lambda: "x" * 1000)
    address = NcclPart(member(1, "aa"), Settings()).bind()
    plane = NcclPart(member(0, "aa"), Settings()).connect(["", address], Scope())
    with pytest.raises(ValueError, match="on rank 1 xxx"):
        plane.choose(Device(KIND))
    plane.close()


def test_contexts_of_the_caller_are_left_alone(fakes: Fakes) -> None:
    other = Context(1)
    with opened(fakes, 1) as group:
        plane = group.planes[0]
        with other.current():
            _begin(plane, _ones(group, plane)).wait()
            assert fakes.cuda.fake_current_device() == 1
    other.close()
