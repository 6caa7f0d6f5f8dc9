"""The plane that goes through the memory of the host: what overlaps, what waits for what, how much memory it takes."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from hvdlite.cuda.memory import copy
from hvdlite.cuda.streams import Stream
from hvdlite.planes.staged.pipeline import BUFFERS
from hvdlite.planes.staged.plane import StagedPlane
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.joined.shm import PLANE as SHM
from tests.gpu.fake import Fakes
from tests.gpu.planes import receiving, spans_of
from tests.gpu.staging import FLOATS, PIECE, One, waiting
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S, until


def test_while_the_host_reduces_a_piece_the_next_come_down_and_the_last_goes_up(one: One) -> None:
    values = np.arange(6 * FLOATS, dtype=np.float32)
    array, out = one.fakes.array(values), one.fakes.array(np.zeros_like(values))
    goes_on = one.host.stop_at(1)
    with waiting(one.doubled(array, out)):
        until(lambda: len(one.host.entered) == 2)
        first = one.host.entered[0] // 4
        one.gpu.up.synchronize()
        assert (out.on_device()[:first] == 2 * values[:first]).all()
        assert (out.on_device()[first:] == 0).all()
        one.gpu.down.synchronize()
        for piece in (2, 3):  # the latter is where the one that has gone up was
            found = np.empty(first, np.float32)
            ctypes.memmove(found.ctypes.data, one.gpu._buffers[piece % BUFFERS].address, found.nbytes)
            assert (found == values[piece * first :][:first]).all()
        goes_on.set()
    assert (out.on_device() == 2 * values).all()
    assert (array.on_device() == values).all()
    assert len(one.host.entered) == 6


def test_pieces_that_are_still_going_up_are_not_overwritten(one: One) -> None:
    values = np.arange(9 * FLOATS, dtype=np.float32)
    array = one.fakes.array(values)
    one.hold(one.gpu.up)
    with waiting(one.doubled(array)):
        until(lambda: len(one.host.entered) == BUFFERS)
        assert (array.on_device() == values).all()
        one.release(one.gpu.up)
    assert (array.on_device() == 2 * values).all()


@pytest.mark.parametrize("floats", [1, FLOATS - 1, FLOATS, FLOATS + 1, 40 * FLOATS, 100_000])
def test_tensors_of_any_size_take_as_much_memory_of_the_host(one: One, floats: int) -> None:
    held = one.fakes.held()["allocations"]
    values = np.arange(floats, dtype=np.float32)
    array = one.fakes.array(values)
    one.doubled(array).wait()
    assert (array.on_device() == 2 * values).all()
    assert sum(one.host.entered) == values.nbytes
    assert len(one.host.entered) == -(-floats // FLOATS)
    assert one.fakes.held()["allocations"] == held + 1


def test_many_small_tensors_share_a_piece(one: One) -> None:
    arrays = [one.fakes.array(np.full(number % 5, number, np.float32)) for number in range(300)]
    staged = one.plane.allreduce(spans_of(*((each, each) for each in arrays)), DType.FLOAT32, Sum, 1.0, 2.0)
    assert staged is not None
    staged.wait()
    for number, array in enumerate(arrays):
        assert (array.on_device() == 2 * number).all()
    assert len(one.host.entered) == 1


def test_nothing_begins_before_the_callers_streams_have_got_there(one: One) -> None:
    """The result, too, may still be in use."""
    values = np.arange(100, dtype=np.float32)
    produced = one.fakes.array(values)
    array, out, used = (one.fakes.empty(values.shape, values.dtype) for _ in range(3))
    one.hold(one.user)
    copy(array.address, produced.address, values.nbytes, one.user)
    copy(out.address, used.address, values.nbytes, one.user)
    one.after_user()
    with waiting(one.doubled(array, out)):
        one.release(one.user)
    assert (out.on_device() == 2 * values).all()


def test_what_only_receives_waits_for_the_callers_streams_too(fakes: Fakes) -> None:
    with SHM.open(2, PATIENCE_S) as hosts:

        def work(rank: int) -> None:
            plane = StagedPlane(member(rank, "aa"), hosts[rank], piece_bytes=PIECE)
            array, other = (fakes.array(np.full(5000, rank, np.int64), rank) for _ in range(2))
            user = Stream(plane._used(array.address).context)
            fakes.cuda.fake_hold(user.handle)
            copy(array.address, other.address, array.nbytes, user)
            plane.wait_for([plane.record(rank, user.handle.value or 0)])
            streams = [spans_of((array, array)) if rank == 0 else receiving(array), spans_of()]
            staged = plane.allgather(streams)
            assert staged is not None
            with waiting(staged):
                fakes.cuda.fake_release(user.handle)
            assert (array.on_device() == 0).all()
            user.close()
            plane.close()

        thread_ranks(2, work)


def test_streams_that_use_the_result_wait_for_it(one: One) -> None:
    """First the host waits until the GPU has been given everything, then the stream."""
    values = np.arange(3 * FLOATS, dtype=np.float32)
    array, copied = one.fakes.array(values), one.fakes.array(np.zeros_like(values))
    goes_on = one.host.stop_at(2)
    staged = one.doubled(array)
    assert not staged.is_done

    def consume() -> None:
        staged.hold_back(one.user.handle.value or 0)
        copy(copied.address, array.address, array.nbytes, one.user)

    consumer = threading.Thread(target=consume)
    consumer.start()
    with waiting(staged):
        until(lambda: len(one.host.entered) == 3)
        one.hold(one.gpu.up)
        assert consumer.is_alive()
        goes_on.set()
        consumer.join(PATIENCE_S)
        assert not consumer.is_alive()
        assert not staged.is_done
        one.release(one.gpu.up)
        one.user.synchronize()
        assert (copied.on_device() == 2 * values).all()
    assert staged.is_done
    staged.hold_back(one.user.handle.value or 0)


def test_who_waits_does_all_that_came_before(one: One) -> None:
    arrays = [one.fakes.array(np.full(10, number, np.float32)) for number in range(4)]
    staged = [one.doubled(each) for each in arrays]
    staged[2].wait()
    assert [each.is_over for each in staged] == [True, True, True, False]
    staged[3].wait()
    staged[0].wait()
    assert [each.on_device()[0] for each in arrays] == [0, 2, 4, 6]
