"""The kernels that move and multiply: their PTX runs in an interpreter, and the results are those of the CPU planes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hvdlite.cuda.context import Context
from hvdlite.cuda.kernel import Kernel
from hvdlite.cuda.streams import Stream
from hvdlite.errors import HorovodInternalError
from hvdlite.planes.arithmetic import BITS, bits_of, scaled, values_of
from hvdlite.planes.nccl import kernels, mover
from hvdlite.planes.nccl.mover import Mover
from hvdlite.tensors.dtypes import DType
from tests.contract import oracle
from tests.gpu.fake import Fakes

TYPES = sorted(kernels.SCALED)
GUARD = 64  # bytes between pieces, which must stay


@pytest.fixture
def stream(fakes: Fakes) -> Iterator[Stream]:
    context = Context(0)
    made = Stream(context)
    yield made
    made.close()
    context.close()


def _expected(bits: Any, dtype: DType, factor: float) -> Any:
    with np.errstate(over="ignore"):
        return bits_of(scaled(values_of(bits, dtype), dtype, factor), dtype) if factor != 1 else bits


def _assert_same(found: Any, expected: Any, dtype: DType) -> None:
    """The same bits, but any NaN for a NaN."""
    is_nan = np.isnan(values_of(expected, dtype)) if dtype.is_floating else np.zeros(len(expected), bool)
    assert np.isnan(values_of(found[is_nan], dtype)).all()
    same = np.dtype(f"u{dtype.itemsize}")
    np.testing.assert_array_equal(found[~is_nan].view(same), expected[~is_nan].view(same))


class Pieces:
    """Pieces of one array, with guards between them, to be moved to the like of another."""

    def __init__(self, fakes: Fakes, values: list[Any], shift: int, other_shift: int) -> None:
        """The pieces begin ``shift`` bytes after multiples of 16, those to write to ``other_shift``."""
        self.values = values
        steps = [GUARD + -(-each.nbytes // 16) * 16 for each in values]
        begins = np.cumsum([GUARD, *steps])
        total = int(begins[-1])
        self.source, self.target = fakes.empty(total + 16, np.uint8), fakes.empty(total + 16, np.uint8)
        self.reads, self.writes = begins[:-1] + shift, begins[:-1] + other_shift
        held = self.source.on_device()
        for begin, each in zip(self.reads, values, strict=True):
            held[begin : begin + each.nbytes] = each.view(np.uint8)
        self.source.write(held)
        rows = zip(self.source.address + self.reads, self.target.address + self.writes, values, strict=True)
        self.spans = np.array([(read, write, each.nbytes) for read, write, each in rows], np.uint64)

    def check(self, dtype: DType, factor: float) -> None:
        """Asserts that each piece was moved, and nothing else touched."""
        found, is_free = self.target.on_device(), np.ones(self.target.nbytes, bool)
        for begin, each in zip(self.writes, self.values, strict=True):
            place = slice(begin, begin + each.nbytes)
            is_free[place] = False
            _assert_same(found[place].copy().view(each.dtype), _expected(each, dtype, factor), dtype)
        assert (found[is_free] == 0xA5).all()


def _special(dtype: DType) -> Any:
    """The values at which rounding, saturation, and numbers that are none show."""
    if not dtype.is_floating:
        limits = np.iinfo(BITS[dtype])
        return np.array([limits.min, limits.min + 1, 0, 1, 2, 3, limits.max - 1, limits.max], BITS[dtype])
    wide = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, 3, 1e-45, 6e-8, 65504, 3.4e38, 1.00390625, 1.01171875])
    with np.errstate(over="ignore"):
        return bits_of(wide.astype(np.float64 if dtype is DType.FLOAT64 else np.float32), dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_pieces_of_any_length_and_place_are_moved_and_multiplied(fakes: Fakes, stream: Stream, dtype: DType) -> None:
    rng, moving, item = np.random.default_rng(int(dtype)), Mover(stream), dtype.itemsize
    tile = kernels.TILE // item
    lengths = (0, 1, 2, 3, 15, 16, 17, tile - 1, tile, tile + 1, 40 * tile + 5)
    values = [_special(dtype), *(oracle.random(rng, dtype, length) for length in lengths)]
    for factor in (1.0, 0.5, 1 / 3, -3.7, 1e-3):
        for shifts in ((0, 0), (item, 0), (0, 16 - item), (item, item)):
            pieces = Pieces(fakes, values, *shifts)
            moving.move(pieces.spans, dtype, factor)
            stream.synchronize()
            pieces.check(dtype, factor)
    moving.close()
    moving.close()
    assert fakes.held()["modules"] == 0


@pytest.mark.parametrize("count", [1, 2, kernels.PIECES, kernels.PIECES + 1, 1000])
def test_any_number_of_pieces(fakes: Fakes, stream: Stream, count: int) -> None:
    rng, moving = np.random.default_rng(count), Mover(stream)
    values = [rng.integers(0, 256, length, np.uint8).view(np.uint8) for length in rng.integers(0, 200, count)]
    for shifts in ((0, 0), (1, 2), (3, 3)):
        pieces = Pieces(fakes, values, *shifts)
        moving.move(pieces.spans)
        stream.synchronize()
        pieces.check(DType.UINT8, 1.0)
    floats = Pieces(fakes, [np.arange(number % 50, dtype=np.float32) for number in range(count)], 4, 0)
    moving.move(floats.spans, DType.FLOAT32, 0.5)
    stream.synchronize()
    floats.check(DType.FLOAT32, 0.5)
    moving.close()


def test_what_would_not_change_is_left_alone(fakes: Fakes, stream: Stream) -> None:
    """Spans that are where they shall be, or empty, without a launch. By a factor they do change in place."""
    moving, values = Mover(stream), np.arange(5000, dtype=np.int32)
    array = fakes.array(values)
    place = array.address + 4, array.address + 4, array.nbytes - 4
    rows = np.array([place, (array.address, 0, 0)], np.uint64)
    fakes.fail("cuLaunchKernel", 1)  # the next one
    moving.move(rows)
    moving.move(rows, DType.INT32, 1.0)
    moving.move(rows, DType.BOOL, 3.0)
    moving.move(rows[:0], DType.INT32, 3.0)
    with pytest.raises(HorovodInternalError, match="cuLaunchKernel"):
        moving.move(rows, DType.INT32, 2.5)
    moving.move(rows, DType.INT32, 2.5)
    stream.synchronize()
    assert array.on_device().tolist() == np.trunc(values * 2.5).tolist()
    moving.close()


def test_a_launch_leaves_multiprocessors_to_others() -> None:
    for tiles, blocks in ((1, 1), (16, 1), (17, 2), (10_000, mover.BLOCKS)):
        words, found = mover.launch_of(np.array([(0, 1 << 40, tiles * kernels.TILE)], np.uint64), 1.0)
        assert found == blocks
        share = int(words[1])
        assert share % kernels.TILE == 0
        assert (blocks - 1) * share < tiles * kernels.TILE <= blocks * share
    assert kernels.PARAMETERS <= 4096  # more only since CUDA 12.1, and on newer GPUs


def test_moves_are_in_the_order_of_the_stream(fakes: Fakes, stream: Stream) -> None:
    """Whose parameters are copied at the launch, so that nothing of it must stay."""
    moving = Mover(stream)
    arrays = [fakes.array(np.full(500, value, np.float64)) for value in (3, 0, 0, 0)]
    fakes.cuda.fake_hold(stream.handle)
    for factor, source, target in zip((2.0, 5.0, 7.0), arrays, arrays[1:], strict=False):
        moving.move(np.array([(source.address, target.address, 4000)], np.uint64), DType.FLOAT64, factor)
    fakes.cuda.fake_release(stream.handle)
    stream.synchronize()
    assert [array.on_device()[499] for array in arrays] == [3, 6, 30, 210]
    moving.close()


def _broken_by(fakes: Fakes, stream: Stream, text: str, address: int) -> str:
    """What a kernel with a row of ``address`` ends with; empty if with success."""
    module = Kernel(stream.context, text, kernels.NAME)
    words, _ = mover.launch_of(np.array([(address, address, 64)], np.uint64), 1.0)
    with stream.context.current():
        module.launch(stream, 1, kernels.THREADS, words.ctypes.data)
    try:
        stream.synchronize()
    except HorovodInternalError as error:
        return str(error)
    finally:
        fakes.cuda.fake_heal()
        module.close()
    return ""


def test_the_interpreter_is_strict(fakes: Fakes, stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    """The premise of the tests above: a kernel that does what no GPU would is an error of the GPU."""
    good, at = kernels.text(kernels.COPIES[4]), fakes.empty(64, np.uint8)
    assert _broken_by(fakes, stream, good, at.address) == ""
    wrong = {
        "beyond an allocation": (good, at.address + 16),
        "not allocated": (good, 1 << 20),
        "misaligned": (good.replace("and.b64 both, both, 15;", "and.b64 both, both, 0;"), at.address + 4),
        "KeyError: 'xor'": (good.replace("or.b64 both", "xor.b64 both"), at.address),
        "AssertionError: ('left', dtype('uint64'))": (good.replace("cvt.u32.u64 left", "mov.u64 left"), at.address),
        "the kernel does not end": (good.replace("bra MOVED;", "bra MORE;"), at.address),
    }
    for told, (text, address) in wrong.items():
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in _broken_by(fakes, stream, text, address), told
        assert told in capfd.readouterr().err


def test_a_kernel_must_have_run_before_it_is_freed(fakes: Fakes, stream: Stream) -> None:
    """Else the GPU breaks: why a plane does not free what may still have to run."""
    moving, array = Mover(stream), fakes.array(np.zeros(10, np.float32))
    fakes.cuda.fake_hold(stream.handle)
    moving.move(np.array([(array.address, array.address, 40)], np.uint64), DType.FLOAT32, 2.0)
    moving.close()
    fakes.cuda.fake_release(stream.handle)
    with pytest.raises(HorovodInternalError, match="ILLEGAL_ADDRESS"):
        stream.synchronize()
    fakes.cuda.fake_heal()


def test_a_kernel_that_does_not_exist_or_does_not_load_is_an_error(fakes: Fakes, stream: Stream) -> None:
    text = kernels.text(kernels.COPIES[1])
    with pytest.raises(HorovodInternalError, match=r"cuModuleGetFunction failed.*\(500\)"):
        Kernel(stream.context, text, "another")
    fakes.fail("cuModuleLoadData", 221)  # libnvidia-ptxjitcompiler.so is missing
    with pytest.raises(HorovodInternalError, match=r"cuModuleLoadData failed.*\(221\).*NVIDIA_DRIVER_CAPABILITIES"):
        Kernel(stream.context, text, kernels.NAME)
