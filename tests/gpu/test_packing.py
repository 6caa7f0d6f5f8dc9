"""Pieces of a GPU's memory that become one."""

from __future__ import annotations

import numpy as np

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Stream
from hvdlite.planes.nccl.packing import Pack
from tests.gpu.fake import Fakes


def test_pieces_beside_each_other_are_one_without_a_copy_and_others_are_copied(fakes: Fakes) -> None:
    context = Context(0)
    stream = Stream(context)
    before = fakes.held()["allocations"]
    array = fakes.array(np.arange(100, dtype=np.uint8))
    at = array.address
    whole = Pack(stream, [(at, 10), (0, 0), (at + 10, 5), (at + 15, 0), (at + 15, 1)])
    assert (whole.address, whole.nbytes) == (at, 16)
    nothing = Pack(stream, [(at, 0)])
    assert (nothing.address, nothing.nbytes) == (0, 0)
    assert fakes.held()["allocations"] == before + 1
    two = Pack(stream, [(at + 50, 2), (at, 1), (at + 1, 1)])
    assert two.nbytes == 4
    two.gather()
    other = Pack(stream, [(two.address, 4)])
    stream.synchronize()
    found = np.empty(4, np.uint8)
    assert fakes.cuda.fake_read(other.address, found.ctypes.data, 4)
    assert found.tolist() == [50, 51, 0, 1]
    array.write(np.zeros(100, np.uint8))
    two.scatter()
    stream.synchronize()
    assert array.on_device()[[50, 51, 0, 1, 2]].tolist() == [50, 51, 0, 1, 0]
    for pack in (whole, nothing, other, two, two):
        pack.close()
    stream.synchronize()
    assert fakes.held()["allocations"] == before + 1
    stream.close()
    context.close()
