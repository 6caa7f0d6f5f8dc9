"""Kernels that copy many pieces of a GPU's memory in one launch, and multiply their elements on the way.

The text is PTX, which CUDA's driver compiles for the GPU that is there; `.target` is the oldest that NCCL supports. A
launch gets its pieces as parameters, of which CUDA takes 4 KiB: nothing is copied to the GPU before it, and nothing
must be kept until it has run.

Pieces lie one after the other at *positions*, each from a multiple of `TILE`. A warp takes a tile at a time, finds
its piece by bisection, and moves 16 bytes in each lane at once where both addresses allow it, else an element.
Results have the bits of `hvdlite.planes.arithmetic.scaled`, except in NaNs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from hvdlite.tensors.dtypes import DType

PIECES: Final = 160
"""The most pieces of one launch."""
WARPS: Final = 16
"""The warps of a block."""
LANES: Final = 32
THREADS: Final = WARPS * LANES
UNITS_OF_16: Final = 4
"""Words of 16 bytes that a lane loads before it stores the first, so that it waits for memory once for all of them."""
ELEMENTS: Final = 8
"""Elements that it loads so, where it cannot move words of 16 bytes."""
TILE: Final = LANES * 16 * UNITS_OF_16
"""Bytes that a warp moves at a time."""
HEADER: Final = 24
"""Parameters before the first piece: the factor, the bytes of each block's share of positions, the number of pieces."""
ENTRY: Final = 24
"""Those of a piece: the addresses to read and to write, both less its first position, and the position of its end."""
PARAMETERS: Final = HEADER + PIECES * ENTRY
NAME: Final = "move"


class Element(NamedTuple):
    """How a kernel deals with elements of ``bits``: ``scale`` multiplies register ``e``, which has them as ``kind``.

    It may use ``factor``, which is a double, ``single``, the same as a float, and the registers of `_REGISTERS`.
    """

    bits: int
    kind: str = "u"
    scale: str = ""

    @property
    def word(self) -> int:
        """Bits of the registers."""
        return max(self.bits, 32)


_REGISTERS: Final = """\
.reg .f32 x;
.reg .f64 d;
.reg .b16 h;
.reg .b32 rounded;
.reg .pred is_nan;
"""

_HALF: Final = """\
cvt.u16.u32 h, e;
cvt.f32.f16 x, h;
mul.rn.f32 x, x, single;
cvt.rn.f16.f32 h, x;
cvt.u32.u16 e, h;
"""

# The upper half of a float, rounded to nearest even. That of a NaN is not rounded, which would make it a number.
_BRAIN: Final = """\
shl.b32 e, e, 16;
mul.rn.f32 x, e, single;
mov.b32 e, x;
bfe.u32 rounded, e, 16, 1;
add.u32 rounded, rounded, 0x7FFF;
add.u32 rounded, rounded, e;
setp.nan.f32 is_nan, x, x;
selp.b32 e, e, rounded, is_nan;
shr.u32 e, e, 16;
"""


def _integer(kind: str, *limits: str) -> str:
    """Multiplies in double and truncates toward zero. The conversion saturates; ``limits`` do so for short types."""
    lines = [f"cvt.rn.f64.{kind} d, e;", "mul.rn.f64 d, d, factor;", f"cvt.rzi.{kind}.f64 e, d;", *limits]
    return "\n".join(lines) + "\n"


COPIES: Final = {1: Element(8), 2: Element(16), 4: Element(32), 8: Element(64)}
"""By the bytes that are moved at once where 16 cannot be."""
SCALED: Final = {
    DType.FLOAT16: Element(16, "u", _HALF),
    DType.BFLOAT16: Element(16, "u", _BRAIN),
    DType.FLOAT32: Element(32, "u", "mul.rn.f32 e, e, single;\n"),
    DType.FLOAT64: Element(64, "u", "mul.rn.f64 e, e, factor;\n"),
    DType.INT8: Element(8, "s", _integer("s32", "max.s32 e, e, -128;", "min.s32 e, e, 127;")),
    DType.UINT8: Element(8, "u", _integer("u32", "min.u32 e, e, 255;")),
    DType.INT32: Element(32, "s", _integer("s32")),
    DType.INT64: Element(64, "s", _integer("s64")),
}

_KERNEL: Final = """\
.version 6.0
.target sm_50
.address_size 64

.visible .entry {name}(.param .align 8 .b8 batch[{parameters}])
.maxntid {threads}, 1, 1
{{
.reg .b64 share, count, entry, end, position, stop, source, target, both;
.reg .b32 lane, warp, block, piece, low, high, middle, left, whole, offset, needed;
.reg .pred over, within, is_after, is_narrow, has<{units}>;
.reg .b{word} e, w<{words}>;
.reg .f64 factor;
.reg .f32 single;
{registers}
ld.param.f64 factor, [batch];
cvt.rn.f32.f64 single, factor;
ld.param.u64 share, [batch+8];
ld.param.u64 count, [batch+16];

// This warp's first position, and where its block's share or the last piece ends.
mov.u32 block, %ctaid.x;
mov.u32 warp, %tid.x;
and.b32 lane, warp, {last_lane};
shr.u32 warp, warp, 5;
cvt.u64.u32 position, block;
mul.lo.u64 position, position, share;
add.u64 stop, position, share;
mad.wide.u32 position, warp, {tile}, position;
mov.u64 entry, batch;
mad.lo.u64 entry, count, {entry}, entry;
ld.param.u64 end, [entry+{last_end}];
min.u64 stop, stop, end;
mov.u32 piece, 0;

NEXT:
setp.ge.u64 over, position, stop;
@over bra DONE;

// The first piece that ends after the position: most often the last tile's.
mov.u64 entry, batch;
mad.wide.u32 entry, piece, {entry}, entry;
ld.param.u64 end, [entry+{end}];
setp.lt.u64 within, position, end;
@within bra FOUND;
mov.u32 low, piece;
cvt.u32.u64 high, count;
BISECT:
add.u32 middle, low, high;
shr.u32 middle, middle, 1;
mov.u64 entry, batch;
mad.wide.u32 entry, middle, {entry}, entry;
ld.param.u64 end, [entry+{end}];
setp.gt.u64 is_after, end, position;
selp.b32 high, middle, high, is_after;
add.u32 middle, middle, 1;
selp.b32 low, low, middle, is_after;
setp.lt.u32 within, low, high;
@within bra BISECT;
mov.u32 piece, low;

FOUND:
mov.u64 entry, batch;
mad.wide.u32 entry, piece, {entry}, entry;
ld.param.u64 source, [entry+{source}];
ld.param.u64 target, [entry+{target}];
ld.param.u64 end, [entry+{end}];
add.u64 source, source, position;
add.u64 target, target, position;
sub.u64 end, end, position;
min.u64 end, end, {tile};
cvt.u32.u64 left, end;
mov.u32 whole, 0;
or.b64 both, source, target;
and.b64 both, both, 15;
setp.ne.u64 is_narrow, both, 0;
@is_narrow bra ELEMENTS;

// Whole words of 16 bytes, and then the elements after them.
shl.b32 offset, lane, 4;
{words_of_16}
and.b32 whole, left, -16;

ELEMENTS:
mad.lo.u32 offset, lane, {itemsize}, whole;
MORE:
setp.ge.u32 over, offset, left;
@over bra MOVED;
{elements}
add.u32 offset, offset, {step};
bra MORE;

MOVED:
add.u64 position, position, {round};
bra NEXT;

DONE:
ret;
}}
"""


@cache
def text(element: Element) -> str:
    """Returns the PTX of the kernel for ``element``, whose name is `NAME`."""
    itemsize, word_bytes = element.bits // 8, element.word // 8
    per_unit = 16 // word_bytes
    words = [f"w{index}" for index in range(UNITS_OF_16 * per_unit)]
    units = [words[first : first + per_unit] for first in range(0, len(words), per_unit)]
    singles = [[word] for word in words[:ELEMENTS]]
    return _KERNEL.format(
        words_of_16=_moving(units, f"v{per_unit}.b{element.word}", 16, element, is_packed=True),
        elements=_moving(singles, f"{element.kind}{element.bits}", itemsize, element, is_packed=False),
        name=NAME,
        parameters=PARAMETERS,
        threads=THREADS,
        units=max(UNITS_OF_16, ELEMENTS),
        word=element.word,
        words=len(words),
        registers=_REGISTERS if element.scale else "",
        last_lane=LANES - 1,
        entry=ENTRY,
        source=HEADER,
        target=HEADER + 8,
        end=HEADER + 16,
        last_end=HEADER - ENTRY + 16,
        tile=TILE,
        round=WARPS * TILE,
        itemsize=itemsize,
        step=LANES * ELEMENTS * itemsize,
    )


def _moving(units: Sequence[Sequence[str]], kind: str, width: int, element: Element, is_packed: bool) -> str:
    """The lines that move a unit of ``width`` bytes at ``offset``, and one at each `LANES` units after it, if there.

    Registers of ``units`` have an element each, or are words that are packed with as many as they hold.
    """
    place, loads, stores = "cvt.u64.u32 both, offset;\nadd.u64 both, both, {};", [], []
    for number, registers in enumerate(units):
        distance, listed = number * LANES * width, ", ".join(registers)
        values = f"{{{listed}}}" if len(registers) > 1 else listed
        loads += [
            f"add.u32 needed, offset, {distance + width};",
            f"setp.le.u32 has{number}, needed, left;",
            f"@has{number} ld.global.{kind} {values}, [both+{distance}];",
        ]
        stores += [line for register in registers for line in _scaled(element, register, is_packed)]
        stores.append(f"@has{number} st.global.{kind} [both+{distance}], {values};")
    return "\n".join([place.format("source"), *loads, place.format("target"), *stores])


def _scaled(element: Element, register: str, is_packed: bool) -> Iterator[str]:
    """The lines that multiply the element in a register, or each of those that are packed in it."""
    if not element.scale:
        return
    if not is_packed or element.bits == element.word:
        yield f"mov.b{element.word} e, {register};"
        yield element.scale.rstrip()
        yield f"mov.b{element.word} {register}, e;"
        return
    for first in range(0, element.word, element.bits):
        place = f"{first}, {element.bits}"
        yield f"bfe.{element.kind}32 e, {register}, {place};"
        yield element.scale.rstrip()
        yield f"bfi.b32 {register}, e, {register}, {place};"
