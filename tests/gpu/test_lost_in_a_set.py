"""A rank is lost whose device holds up a process set: all ranks of the job hear of it, in the set or not."""

from __future__ import annotations

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.cuda.presence import KIND
from hvdlite.planes.nccl.plane import NcclPlane
from hvdlite.session import current
from tests.gpu.fake import Fakes
from tests.gpu.program import Program
from tests.harness import ProcessRanks, reached
from tests.harness.patience import NEVER_SILENT, until


def _lose(folder: str) -> None:
    """The devices of the set's ranks, 1 and 2, begin nothing. Rank 2 will be killed."""
    program = Program(folder)
    front_end, ones = program.collectives, np.ones(1000, np.float32)
    pair = hvd.add_process_set([1, 2])
    with program.streams.opened() as stream:
        front_end.allreduce(program.array(ones), name="of all")
        if pair.included():
            front_end.allreduce(program.array(ones), name="first", process_set=pair)
            stream.synchronize()
            plane = current().group_of(pair).planes[KIND]
            assert isinstance(plane, NcclPlane)
            assert plane._gpu is not None
            own = plane._gpu.stream
            program.hold(own)
            handle = front_end.allreduce_async(program.array(ones), name="x", process_set=pair)
            until(lambda: handle.is_done)
            assert not hvd.poll(handle)
        reached("waiting")
        error = None
        if pair.included():
            until(lambda: hvd.poll(handle))  # of an error; the device has not begun
            with pytest.raises(hvd.PeerLost) as raised:
                hvd.synchronize(handle)
            error = raised.value
            program.release(own)
        for process_set in (pair, hvd.global_process_set):
            if process_set.included():
                with pytest.raises(hvd.PeerLost) as raised:
                    front_end.allreduce(program.array(ones), name="next", process_set=process_set)
                assert error is None or str(raised.value) == str(error)
                error = raised.value
    program.leave()
    assert error is not None
    raise error


def test_a_peer_that_is_lost_after_a_launch_of_a_process_set(loaded_fakes: Fakes) -> None:
    with ProcessRanks(3, _lose, str(loaded_fakes.folder), environ=NEVER_SILENT) as ranks:
        ranks.wait_for("waiting")
        ranks.kill(2)
        outcomes = ranks.join()
    for rank in (0, 1):
        assert (outcomes[rank].error, outcomes[rank].details.get("rank")) == ("PeerLost", 2), outcomes[rank].output
