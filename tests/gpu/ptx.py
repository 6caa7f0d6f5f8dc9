"""Runs kernels of PTX without a GPU: all threads of a launch at once, in arrays of numpy.

It knows the instructions that hvdlite's kernels have and is strict: registers must have the width of the type, nothing
may be accessed outside an allocation or unaligned, and a NaN has no integer. Threads that have gone apart run again
together where their ways meet, since those that are behind go first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Lanes = npt.NDArray[np.intp]

POISON = 0xA5A5A5A5A5A5A5A5
MOST_STEPS = 20_000


class Memory(Protocol):
    """The memory of a GPU, in words of 1, 2, 4, 8 or 16 bytes, of which the last are pieces of 8."""

    def load(self, addresses: Array, nbytes: int) -> Array:
        """The words, each ``nbytes`` of uint8."""

    def store(self, addresses: Array, words: Array) -> None:
        """Writes words of uint8."""


class Instruction(NamedTuple):
    predicate: str
    opcode: tuple[str, ...]
    operands: tuple[str, ...]


class Kernel(NamedTuple):
    parameter: str
    nbytes: int
    registers: dict[str, int]  # bits; 1 for a predicate
    code: list[Instruction]
    labels: dict[str, int]


@cache
def parsed(text: str, name: str) -> Kernel:
    text = re.sub(r"//.*", "", text)
    head = re.search(rf"\.visible \.entry {name}\(\.param \.align 8 \.b8 (\w+)\[(\d+)\]\)(.*?)\{{(.*)\}}", text, re.S)
    assert head, f"no kernel {name}"
    assert re.fullmatch(r"\s*\.maxntid \d+, 1, 1\s*", head[3])
    registers: dict[str, int] = {}
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in re.split(r";|(?<=:)\s", head[4]):
        words = statement.split(None, 1)
        if not words:
            continue
        if words[0] == ".reg":
            kind, names = words[1].split(None, 1)
            for each in names.split(","):
                base, _, count = each.strip().rstrip(">").partition("<")
                bits = 1 if kind == ".pred" else int(kind[2:])
                registers |= {base + suffix: bits for suffix in (map(str, range(int(count))) if count else [""])}
        elif words[0].endswith(":"):
            labels[words[0][:-1]] = len(code)
        else:
            whole = re.fullmatch(r"(?:@(\w+) )?([\w.]+)(?: (.*))?", statement.strip())
            assert whole, statement
            listed = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", whole[3] or "")
            code.append(Instruction(whole[1] or "", tuple(whole[2].split(".")), tuple(listed)))
    return Kernel(head[1], int(head[2]), registers, code, labels)


def run(text: str, name: str, blocks: int, threads: int, parameter: bytes, memory: Memory) -> None:
    kernel = parsed(text, name)
    assert len(parameter) == kernel.nbytes
    with np.errstate(all="ignore"):
        _Launch(kernel, blocks, threads, parameter, memory).run()


def _type(suffix: str) -> np.dtype[Any]:
    return np.dtype(f"{ {'b': 'u', 's': 'i'}.get(suffix[0], suffix[0]) }{int(suffix[1:]) // 8}")


class _Launch:
    def __init__(self, kernel: Kernel, blocks: int, threads: int, parameter: bytes, memory: Memory) -> None:
        self.kernel, self.memory = kernel, memory
        self.parameter = np.frombuffer(parameter, np.uint8)
        self.count = count = blocks * threads
        self.values = {
            name: np.full(count, True) if bits == 1 else np.full(count, POISON % 2**bits, f"u{bits // 8}")
            for name, bits in kernel.registers.items()
        }
        self.special = {
            "%tid.x": np.tile(np.arange(threads, dtype=np.uint32), blocks),
            "%ctaid.x": np.repeat(np.arange(blocks, dtype=np.uint32), threads),
        }

    def run(self) -> None:
        at = np.zeros(self.count, np.int64)
        end, meetings = len(self.kernel.code), set(self.kernel.labels.values())
        for _ in range(MOST_STEPS):
            here = int(at.min())
            if here == end:
                return
            lanes = np.flatnonzero(at == here)
            while True:
                instruction = self.kernel.code[here]
                active = lanes[self.values[instruction.predicate][lanes]] if instruction.predicate else lanes
                here += 1
                if instruction.opcode[0] in ("bra", "ret"):
                    at[lanes] = here
                    at[active] = self.kernel.labels[instruction.operands[0]] if instruction.operands else end
                    break
                if len(active):
                    self.do(instruction, active)
                if here in meetings:
                    at[lanes] = here
                    break
        raise AssertionError("the kernel does not end")

    def do(self, instruction: Instruction, lanes: Lanes) -> None:
        name, *modifiers = instruction.opcode
        if name in ("ld", "st"):
            getattr(self, f"{name}_{modifiers[0]}")(lanes, modifiers[1:], *instruction.operands)
            return
        target, *sources = instruction.operands
        kind = _type(modifiers[-1])
        if name == "setp":
            left, right = (self.read(each, kind, lanes) for each in sources)
            compared = {
                "lt": np.less,
                "le": np.less_equal,
                "gt": np.greater,
                "ge": np.greater_equal,
                "ne": np.not_equal,
            }
            is_nan = modifiers[0] == "nan"
            self.values[target][lanes] = np.isnan(left + right) if is_nan else compared[modifiers[0]](left, right)
        elif name == "selp":
            left, right = (self.read(each, kind, lanes) for each in sources[:2])
            self.write(target, lanes, np.where(self.values[sources[2]][lanes], left, right))
        elif name == "cvt":
            self.write(target, lanes, _converted(self.read(sources[0], kind, lanes, is_wider=True), modifiers))
        elif name == "mad":
            wide = np.dtype("u8") if modifiers[0] == "wide" else kind
            assert modifiers[0] in ("wide", "lo")
            left, right = (self.read(each, kind, lanes).astype(wide) for each in sources[:2])
            self.write(target, lanes, left * right + self.read(sources[2], wide, lanes))
        else:
            assert modifiers[:-1] in ([], ["lo"], ["rn"]), instruction
            left, *rest = (self.read(each, kind, lanes) for each in sources)
            self.write(target, lanes, _OPERATIONS[name](left, *rest))

    def ld_param(self, lanes: Lanes, modifiers: list[str], target: str, place: str) -> None:
        kind = _type(modifiers[0])
        begins = self.address(place, lanes)
        assert (begins % kind.itemsize == 0).all()
        assert (begins + np.uint64(kind.itemsize) <= len(self.parameter)).all()
        found = self.parameter[begins[:, None] + np.arange(kind.itemsize, dtype=np.uint64)].view(kind)[:, 0]
        self.write(target, lanes, found)

    def ld_global(self, lanes: Lanes, modifiers: list[str], target: str, place: str) -> None:
        kind, targets = _type(modifiers[-1]), target.strip("{}").split(", ")
        assert modifiers[:-1] == ([f"v{len(targets)}"] if len(targets) > 1 else [])
        words = self.memory.load(self.address(place, lanes), kind.itemsize * len(targets)).view(kind)
        for index, each in enumerate(targets):
            bits = self.kernel.registers[each]
            self.write(each, lanes, words[:, index].astype(f"{kind.kind}{bits // 8}"))

    def st_global(self, lanes: Lanes, modifiers: list[str], place: str, source: str) -> None:
        kind, sources = _type(modifiers[-1]), source.strip("{}").split(", ")
        assert modifiers[:-1] == ([f"v{len(sources)}"] if len(sources) > 1 else [])
        words = np.stack([self.read(each, kind, lanes, is_wider=True) for each in sources], axis=1)
        self.memory.store(self.address(place, lanes), np.ascontiguousarray(words).view(np.uint8))

    def address(self, place: str, lanes: Lanes) -> Array:
        base, _, offset = place.strip("[]").partition("+")
        return self.read(base, np.dtype("u8"), lanes) + np.uint64(offset or 0)

    def read(self, operand: str, kind: np.dtype[Any], lanes: Lanes, is_wider: bool = False) -> Array:
        """The values of a register, or a number, as ``kind``. A wider register gives its lower bits."""
        if operand in self.special:
            return self.special[operand][lanes].astype(kind)
        if operand == self.kernel.parameter:  # its address, in a space of its own
            return np.zeros(len(lanes), kind)
        if operand in self.values:
            bits = self.kernel.registers[operand]
            assert bits == kind.itemsize * 8 or (is_wider and bits > kind.itemsize * 8), operand
            found = self.values[operand][lanes]
            return found.astype(f"u{kind.itemsize}").view(kind)
        return np.full(len(lanes), int(operand, 0)).astype(kind)

    def write(self, register: str, lanes: Lanes, values: Array) -> None:
        held = self.values[register]
        assert values.dtype.itemsize == held.dtype.itemsize, (register, values.dtype)
        held[lanes] = np.ascontiguousarray(values).view(held.dtype)


def _converted(values: Array, modifiers: list[str]) -> Array:
    *rounding, kind, source = modifiers
    to = _type(kind)
    if source[0] != "f":
        assert rounding == (["rn"] if to.kind == "f" else [])
        return values.astype(to)
    if to.kind == "f":
        assert rounding == ([] if to.itemsize > values.dtype.itemsize else ["rn"])
        return _canonical(values.astype(to))
    assert rounding == ["rzi"]
    assert not np.isnan(values).any()
    limits, whole = np.iinfo(to), np.trunc(values)
    is_low, is_high = whole < float(limits.min), whole >= float(limits.max) + 1
    return np.where(is_low, limits.min, np.where(is_high, limits.max, np.where(is_low | is_high, 0, whole).astype(to)))


def _canonical(values: Array) -> Array:
    """The same with the one NaN that GPUs make."""
    bits = values.dtype.itemsize * 8
    nan = (1 << (bits - 1)) - 1 if bits < 64 else 0x7FF8 << 48
    return np.where(np.isnan(values), np.array(nan, f"u{bits // 8}").view(values.dtype), values)


def _extracted(values: Array, first: Array, count: Array) -> Array:
    bits = values.dtype.itemsize * 8
    up = bits - first - count
    return values << up >> (bits - count)


def _inserted(values: Array, into: Array, first: Array, count: Array) -> Array:
    mask = ((np.uint64(1) << count.astype("u8")) - np.uint64(1)).astype(into.dtype) << first
    return into & ~mask | values << first & mask


def _product(left: Array, right: Array) -> Array:
    return _canonical(left * right) if left.dtype.kind == "f" else left * right


_OPERATIONS: dict[str, Callable[..., Array]] = {
    "mov": lambda value: value,
    "add": np.add,
    "sub": np.subtract,
    "mul": _product,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "bfe": _extracted,
    "bfi": _inserted,
}
