"""Runs one agreed batch on a data plane: entries become spans, and spans one native call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hvdlite.core.buffer import Spans
from hvdlite.core.dtypes import Average, Sum
from hvdlite.core.entry import Entry
from hvdlite.core.messages import Kind
from hvdlite.dataplane.base import DataPlane


class Work(NamedTuple):
    """A batch on this rank: its entries, and for each the first dimensions by rank where it is an allgather."""

    entries: Sequence[Entry]
    rows: Sequence[tuple[int, ...]]


def run(work: Work, plane: DataPlane) -> None:
    """Moves the bytes of ``work``; every rank of the plane's group calls it with the same batch."""
    kind = work.entries[0].request.kind
    if kind is Kind.ALLREDUCE:
        _allreduce(work.entries, plane)
    elif kind is Kind.BARRIER:
        plane.barrier()
    else:
        _gather(work, plane)


def _allreduce(entries: Sequence[Entry], plane: DataPlane) -> None:
    request = entries[0].request
    op, postscale = request.op, request.postscale
    if op == Average:
        op, postscale = Sum, postscale / plane.size
    rows = []
    for entry in entries:
        target = entry.target
        assert target is not None  # the front end makes the output of an all-reduce at once
        rows.append((entry.source.address, target.address, target.nbytes))
    plane.allreduce(_spans(rows), request.dtype, op, request.prescale, postscale)


def _gather(work: Work, plane: DataPlane) -> None:
    streams: list[list[tuple[int, int, int]]] = [[] for _ in range(plane.size)]
    for entry, rows in zip(work.entries, work.rows, strict=True):
        if entry.request.kind is Kind.BROADCAST:
            assert entry.target is not None
            streams[entry.request.root].append((entry.source.address, entry.target.address, entry.source.nbytes))
        else:
            _add_allgather(streams, entry, rows, plane.rank)
    plane.allgather([_spans(rows) for rows in streams])


def _add_allgather(
    streams: list[list[tuple[int, int, int]]], entry: Entry, rows: tuple[int, ...], own_rank: int
) -> None:
    assert entry.allocate is not None
    rest = entry.source.shape[1:]
    entry.handle.output, entry.target = entry.allocate((sum(rows), *rest))
    row_bytes = math.prod(rest) * entry.source.dtype.itemsize
    address = entry.target.address
    for rank, count in enumerate(rows):
        source = entry.source.address if rank == own_rank else 0
        streams[rank].append((source, address, count * row_bytes))
        address += count * row_bytes


def _spans(rows: Iterable[tuple[int, int, int]]) -> Spans:
    return np.array(list(rows), np.uint64).reshape(-1, 3)
