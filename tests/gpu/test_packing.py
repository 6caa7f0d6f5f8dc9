"""Pieces of a GPU's memory that become one."""

from __future__ import annotations

import numpy as np

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Stream
from hvdlite.planes.nccl.mover import Mover
from hvdlite.planes.nccl.packing import Pack, gather, place, scatter
from hvdlite.planes.nccl.scratch import Scratch
from hvdlite.tensors.dtypes import DType
from tests.gpu.fake import Fakes


def test_pieces_beside_each_other_are_one_without_a_copy_and_others_are_copied(fakes: Fakes) -> None:
    context = Context(0)
    stream = Stream(context)
    moving, scratch = Mover(stream), Scratch(stream)
    before = fakes.held()["allocations"]
    array = fakes.array(np.arange(100, dtype=np.uint8))
    at = array.address
    whole = Pack([(at, 10), (0, 0), (at + 10, 5), (at + 15, 0), (at + 15, 1)])
    nothing = Pack([(at, 0)], is_copy=True)
    place([whole, nothing], scratch)
    gather([whole, nothing], moving)
    assert (whole.address, whole.nbytes) == (at, 16)
    assert (nothing.address, nothing.nbytes) == (0, 0)
    assert fakes.held()["allocations"] == before + 1
    assert fakes.held()["modules"] == 0
    two, copied = Pack([(at + 50, 2), (at, 1), (at + 1, 1)]), Pack([(at + 7, 3)], is_copy=True)
    place([two, whole, copied], scratch)
    assert (two.nbytes, copied.nbytes) == (4, 3)
    gather([two, whole, copied], moving, DType.UINT8, 2.0)
    other = Pack([(two.address, 4)])
    stream.synchronize()
    for pack, values in ((other, [100, 102, 0, 2]), (copied, [14, 16, 18])):
        found = np.empty(pack.nbytes, np.uint8)
        assert fakes.cuda.fake_read(pack.address, found.ctypes.data, pack.nbytes)
        assert found.tolist() == values
    array.write(np.zeros(100, np.uint8))
    scatter([two], moving)
    stream.synchronize()
    assert array.on_device()[[50, 51, 0, 1, 2, 7]].tolist() == [100, 102, 0, 2, 0, 0]
    for each in (moving, scratch, scratch):
        each.close()
    stream.synchronize()
    assert fakes.held()["allocations"] == before + 1
    stream.close()
    context.close()
