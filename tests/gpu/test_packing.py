"""Pieces of a GPU's memory that become one."""

from __future__ import annotations

import numpy as np
import pytest

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Stream
from hvdlite.errors import HorovodInternalError
from hvdlite.planes.nccl.mover import Mover
from hvdlite.planes.nccl.packing import Pack, gather, in_one_piece, packed_bytes, place, scatter
from hvdlite.planes.nccl.scratch import LINE, Scratch
from hvdlite.tensors.buffer import Spans
from hvdlite.tensors.dtypes import DType
from tests.gpu.fake import Fakes


def test_each_piece_begins_where_kernels_move_16_bytes(fakes: Fakes) -> None:
    context = Context(0)
    stream = Stream(context)
    scratch = Scratch(stream)
    before = fakes.held()["allocations"]
    rows = _rows((3, 5, 7), (1, 1, 0), (40, 60, 16), (70, 90, 17))
    into, out = in_one_piece(rows, 1024)
    assert packed_bytes(rows) == 64
    assert into.tolist() == [[3, 1024, 7], [1, 1040, 0], [40, 1040, 16], [70, 1056, 17]]
    assert out.tolist() == [[1024, 5, 7], [1040, 1, 0], [1040, 60, 16], [1056, 90, 17]]
    odd, even = Pack([(3, 7)], is_copy=True), Pack([(3, 16)], is_copy=True)
    place([odd, even], scratch)
    assert (odd.address % LINE, even.address) == (0, odd.address + LINE)
    assert fakes.held()["allocations"] == before + 1
    scratch.close()
    stream.synchronize()
    stream.close()
    context.close()


def _rows(*rows: tuple[int, int, int]) -> Spans:
    return np.array(rows, np.uint64)


def test_pieces_beside_each_other_are_one_without_a_copy_and_others_are_copied(fakes: Fakes) -> None:
    context = Context(0)
    stream = Stream(context)
    moving, scratch = Mover(stream), Scratch(stream)
    before = fakes.held()["allocations"]
    array = fakes.array(np.arange(100, dtype=np.uint8))
    at = array.address
    whole = Pack([(at, 10), (0, 0), (at + 10, 5), (at + 15, 0), (at + 15, 1)])
    nothing = Pack([(at, 0)], is_copy=True)
    fakes.fail("cuLaunchKernel", 1)  # the next one, which is not made yet
    place([whole, nothing], scratch)
    gather([whole, nothing], moving)
    assert (whole.address, whole.nbytes) == (at, 16)
    assert (nothing.address, nothing.nbytes) == (0, 0)
    assert fakes.held()["allocations"] == before + 1
    scatter([whole, nothing], moving)
    with pytest.raises(HorovodInternalError, match="cuLaunchKernel"):
        moving.move(_rows((at, at + 1, 1)))
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
