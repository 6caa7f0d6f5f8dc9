"""The black box of a rank: memory that outlives the rank, however that ends, because its agent holds it too.

The rank maps it and writes (`hvdlite.observe.recorder`); the agent reads it when the rank has ended. It has a head, two
notes of what the rank was doing, of which the later counts, and the latest `RECORDS` batches. A rank may be killed in
the middle of a write: notes and records have their number at both ends, and those whose ends differ are left out. The
reader trusts nothing: it checks what it decodes, and caps it.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

RECORDS: Final = 4096
NAME_BYTES: Final = 64
NOTE_BYTES: Final = 4096

HEAD: Final = struct.Struct("<8sIIIi")
"""A mark of the format, and the process: its pid, its rank, the size of the job, and its `Phase`."""
NOTE: Final = struct.Struct(f"<QdI{NOTE_BYTES}sQ")
"""Number, time, and the length and bytes of a text: the JSON of an object."""
RECORD: Final = struct.Struct(f"<QIQIQdddddid{NAME_BYTES}sQ")
"""Those of `Record`, between twice its index."""

MARK: Final = b"hvdbox 1"
NOTES_AT: Final = 64
RECORDS_AT: Final = NOTES_AT + 2 * NOTE.size
NBYTES: Final = RECORDS_AT + RECORDS * RECORD.size

_INDEX: Final = struct.Struct("<Q")

_MOST_LINES: Final = 12
_MOST_CHARACTERS: Final = 300  # of a line
_MOST_NAMES: Final = 3


class Phase(IntEnum):
    """Where a rank is on its way from `init` to `shutdown`."""

    OUTSIDE = 0
    JOINING = 1
    INSIDE = 2


class Record(NamedTuple):
    """A batch that is done. ``position`` counts those of all groups of this rank from 0.

    ``group`` is the number of a process set, ``number`` that of the batch in its group. ``name`` is that of its first
    tensor. ``nbytes`` and the times are those of `hvdlite.engine.observer.BatchRecord`; ``last_rank`` is below 0 where
    it is not known.
    """

    position: int
    group: int
    number: int
    tensors: int
    nbytes: int
    told_at: float
    agreed_at: float
    moved_at: float
    done_at: float
    waited_s: float
    last_rank: int
    late_s: float
    name: str


@dataclass(frozen=True)
class BlackBox:
    """What a black box contained. ``note`` was written at ``noted_at``."""

    pid: int
    rank: int
    size: int
    phase: Phase
    noted_at: float
    note: Mapping[str, Any]
    memory: bytes

    def records(self) -> list[Record]:
        """Returns the latest batches, in their order."""
        found = (_record(self.memory, slot) for slot in range(RECORDS))
        return sorted(record for record in found if record is not None)

    def last(self) -> Record | None:
        """Returns the latest batch, without a look at the others but for their index."""
        indices = [_INDEX.unpack_from(self.memory, RECORDS_AT + slot * RECORD.size)[0] for slot in range(RECORDS)]
        for index in sorted(indices, reverse=True)[:2]:  # the latest may not be complete
            if (record := _record(self.memory, index % RECORDS)) is not None:
                return record
        return None


def make() -> int:
    """Returns a descriptor of new memory for one rank, whose size nobody can change. Raises OSError."""
    descriptor = os.memfd_create("hvdlite-blackbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, NBYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int) -> BlackBox | None:
    """Returns the contents of the memory at ``descriptor``; None if no rank has begun to write to it."""
    memory = os.pread(descriptor, NBYTES, 0)
    if len(memory) < NBYTES:
        return None
    mark, pid, rank, size, phase = HEAD.unpack_from(memory)
    if mark != MARK or phase not in tuple(Phase):
        return None
    noted_at, note = max((_note(memory, slot) for slot in range(2)), key=lambda found: found[0])
    return BlackBox(pid, rank, size, Phase(phase), noted_at, note, memory)


def _note(memory: bytes, slot: int) -> tuple[float, Mapping[str, Any]]:
    number, at, length, text, again = NOTE.unpack_from(memory, NOTES_AT + slot * NOTE.size)
    if number == again != 0 and length <= NOTE_BYTES:
        with suppress(ValueError, RecursionError):
            note = json.loads(text[:length])
            if isinstance(note, dict):
                return at, note
    return 0.0, {}


def _record(memory: bytes, slot: int) -> Record | None:
    index, *rest, name, again = RECORD.unpack_from(memory, RECORDS_AT + slot * RECORD.size)
    if not index == again != 0:
        return None
    return Record._make((index - 1, *rest, name.rstrip(b"\0").decode(errors="replace")))


# ---- for people


def describe(box: BlackBox, ended_at: float) -> list[str]:
    """What a rank did before it ended, at ``ended_at`` on the host's monotonic clock: a few lines, the latest first."""
    if box.phase is Phase.JOINING:
        return ["it was in init(), and not all ranks had come"]
    if box.phase is Phase.OUTSIDE:
        return ["it had left the job by shutdown()"]
    lines = []
    if (last := box.last()) is not None:
        what = f"{last.tensors} tensors, {last.name!r} and others" if last.tensors > 1 else repr(last.name)
        lines.append(
            f"{ended_at - last.done_at:.1f} s before its end it finished batch {last.number} ({what}), "
            f"the last of {last.position + 1}"
        )
    else:
        lines.append("it had finished no collective")
    if box.noted_at:
        lines.append(f"{ended_at - box.noted_at:.1f} s before its end {_in_flight(box.note)}")
        lines += [
            f"{'called by' if number else 'the main thread was in'} {call}"
            for number, call in enumerate(_texts(box.note.get("stack")))
        ]
    return [line[:_MOST_CHARACTERS] for line in lines[:_MOST_LINES]]


def _in_flight(note: Mapping[str, Any]) -> str:
    number, waiting_s = note.get("in_flight"), note.get("waiting_s")
    names = _texts(note.get("names"))[:_MOST_NAMES]
    listed = "nothing"
    if isinstance(number, int) and names:
        more = f" and {number - len(names)} more" if number > len(names) else ""
        listed = ", ".join(map(repr, names)) + more
    waits = isinstance(waiting_s, (int, float)) and waiting_s > 0
    return f"it {f'had waited for {waiting_s:.1f} s' if waits else 'was at work'}, with {listed} in flight"


def _texts(value: object) -> list[str]:
    return [" ".join(each.split()) for each in value if isinstance(each, str)] if isinstance(value, list) else []
