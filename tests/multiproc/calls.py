"""Collectives as data, so that a test can list them, or draw them at random, and every rank makes the same of them.

A `Call` says everything about one collective among the members of a set. The tensors of all its members follow from
it, so each rank knows what the others give. Members are counted within the set; ``ranks`` are their numbers in the job.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import hvdlite as hvd
from hvdlite.negotiation.rows import even_splits

Array = npt.NDArray[Any]

DTYPES: Final = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
OPS: Final = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum)
OP_NAMES: Final = dict(zip(OPS, "Average Sum Min Max Product Adasum".split(), strict=True))

ALLREDUCES: Final = ("allreduce", "grouped_allreduce")
REDUCTIONS: Final = (*ALLREDUCES, "reducescatter", "grouped_reducescatter", "reduce")
RAGGED: Final = ("allgather", "grouped_allgather", "gather", "alltoall")  # members may give different numbers of rows
MOVEMENTS: Final = (*RAGGED, "broadcast", "scatter", "send")
IN_PLACE: Final = (*ALLREDUCES, "broadcast", "send")
ROOTED: Final = ("reduce", "broadcast", "gather", "scatter")


@dataclass(frozen=True)
class Call:
    """One collective. ``parts`` are dtype and shape of its tensors: one, or several for a grouped collective.

    The first dimension of a shape is a bound on the rows where members give different numbers of them. ``root`` is also
    the sender of a message, which goes to the next member. ``seed`` decides the values, the rows and the splits.
    """

    kind: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    op: int = hvd.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    has_splits: bool = False
    seed: int = 0

    def __str__(self) -> str:
        parts = " ".join(f"{dtype}{list(shape)}" for dtype, shape in self.parts)
        op = f" {OP_NAMES[self.op]} {self.prescale}×{self.postscale}" if self.kind in REDUCTIONS else ""
        root = f" root {self.root}" if self.kind in (*ROOTED, "send") else ""
        return f"{self.kind} {parts}{op}{root}{' with splits' if self.has_splits else ''} seed {self.seed}"


def is_possible(call: Call, size: int) -> bool:
    """True if ``size`` members can make the call; impossible calls are tested as errors."""
    if call.kind == "send" and size == 1:
        return False
    for dtype, shape in call.parts:
        if not shape and call.kind not in (*ALLREDUCES, "reduce", "broadcast", "send"):
            return False
        if call.kind in REDUCTIONS:
            if call.op == hvd.Average and dtype == "bool":
                return False
            if call.op == hvd.Adasum and (call.kind not in ALLREDUCES or not dtype.startswith("float")):
                return False
    return True


def receiver(call: Call, size: int) -> int:
    """The member that a message goes to."""
    return (call.root + 1) % size


def takes_part(call: Call, member: int, size: int) -> bool:
    return call.kind != "send" or member in (call.root, receiver(call, size))


def tensors(call: Call, member: int, size: int) -> list[Array]:
    """The tensors that ``member`` of ``size`` passes."""
    return [
        _values(_rng(call, member, index), dtype, _shape(call, member, index, size))
        for index, (dtype, _) in enumerate(call.parts)
    ]


def splits(call: Call, member: int, size: int) -> tuple[int, ...]:
    """The rows of its tensor that ``member`` sends to each, in an alltoall or a scatter."""
    rows = _shape(call, member, 0, size)[0]
    if not call.has_splits:
        return even_splits(rows, size)
    cuts = np.sort(_rng(call, member, 1000).integers(0, rows, size, endpoint=True))  # some rows may be left over
    return tuple(np.diff(cuts, prepend=0).tolist())


def start(
    call: Call,
    name: str,
    mode: str,
    given: Sequence[Any],
    ranks: Sequence[int],
    process_set: hvd.ProcessSet,
    front_end: Any = hvd,
) -> Any:
    """Calls the function of ``front_end`` in this ``mode``: "", "_", "_async" or "_async_". Returns what it returns."""
    member = ranks.index(hvd.rank())
    keywords: dict[str, Any] = dict(name=name, process_set=process_set)
    if call.kind in REDUCTIONS:
        keywords |= dict(op=call.op, prescale_factor=call.prescale, postscale_factor=call.postscale)
    if call.kind in ROOTED:
        keywords |= dict(root_rank=ranks[call.root])
    if call.has_splits:
        keywords |= dict(splits=splits(call, member, len(ranks)))
    function = call.kind
    if call.kind == "send":
        peer = receiver(call, len(ranks)) if member == call.root else call.root
        keywords |= dict(rank=ranks[peer])
        function, mode = ("send", mode.removesuffix("_")) if member == call.root else ("recv", mode)
    return getattr(front_end, function + mode)(list(given) if call.kind.startswith("grouped") else given[0], **keywords)


def _rng(call: Call, member: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(zlib.crc32(f"{call.kind} {call.seed} {member} {index}".encode())))


def _shape(call: Call, member: int, index: int, size: int) -> tuple[int, ...]:
    shape = call.parts[index][1]
    if call.kind in RAGGED:
        return (_rows(call, member, index, size), *shape[1:])
    if call.kind == "scatter" and member != call.root:
        return (0, *shape[1:])
    return shape


def _rows(call: Call, member: int, index: int, size: int) -> int:
    bound = call.parts[index][1][0]
    if call.kind == "alltoall" and not call.has_splits:
        return bound * size
    return int(_rng(call, member, 2000 + index).integers(0, bound, endpoint=True))


def _values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Sums of integers wrap around; floats are small whole numbers, whose sums do not depend on the order."""
    count = math.prod(shape)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, count).astype(bool).reshape(shape)
    if kind.kind == "f":
        return rng.integers(-8, 8, count).astype(kind).reshape(shape)
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, count, kind, endpoint=True).reshape(shape)
