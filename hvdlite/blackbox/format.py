"""The black box of a rank: memory that outlives the rank because its agent holds it too.

The rank writes (`hvdlite.observe.recorder`); the agent reads, also after the rank has ended. The memory contains a
head, the rank's quantities (`hvdlite.metrics.table`), its latest findings, two notes of what the rank was doing, of
which the later counts, its latest `RECORDS` batches, and stacks of its threads (`hvdlite.observe.stacks`). A rank may
be killed during a write. So findings, notes, records and stacks have their number at both ends, and the reader skips
those whose numbers differ. It checks and caps everything that it decodes.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from hvdlite.metrics.table import Quantities, Quantity, of_ranks
from hvdlite.net.untrusted import parse

RECORDS: Final = 4096
NAME_BYTES: Final = 64
NOTE_BYTES: Final = 6 << 10
FINDINGS: Final = 4
FINDING_BYTES: Final = 16 << 10
MOST_QUANTITIES: Final = 64
STACKS_BYTES: Final = 128 << 10
DUMP_BYTES: Final = 512 << 10

HEAD: Final = struct.Struct("<8sIIIi")
"""A mark of the format, and the process: its pid, its rank, the size of the job, and its `Phase`."""
OFFER: Final = struct.Struct("<iiIQf")
"""A signal on which the rank dumps its stacks, or 0; the native id of the thread to send it to; the rank's descriptor
of this memory; Python's id of the main thread; the seconds after which a wait for the rank is reported, 0: never."""
NOTE: Final = struct.Struct(f"<QdI{NOTE_BYTES}sQ")
"""Number, time, and the length and bytes of a text: the JSON of an object."""
FINDING: Final = struct.Struct(f"<QI{FINDING_BYTES}sQ")
"""Number, and the length and bytes of a text: the JSON of the fields of a `Finding`."""
RECORD: Final = struct.Struct(f"<QIQIQdddddidB{NAME_BYTES}sQ")
"""The fields of `Record`, between its index and its index again."""
NUMBER: Final = struct.Struct("<d")
STACKS: Final = struct.Struct(f"<QI{STACKS_BYTES}sQ")
"""Number of the answered question, and the length and bytes of a text: JSON, see `hvdlite.observe.stacks`."""

MARK: Final = b"hvdbox 4"
AWAKE_AT: Final = 24
"""When the recorder was last awake, on the host's monotonic clock, as a `NUMBER`; 0 if it has ended."""
OFFER_AT: Final = 32
ASKED_AT: Final = 56
"""The number of the latest question for stacks, the only thing that the agent writes."""
QUANTITIES_AT: Final = 64
FINDINGS_AT: Final = QUANTITIES_AT + MOST_QUANTITIES * NUMBER.size
NOTES_AT: Final = FINDINGS_AT + FINDINGS * FINDING.size
RECORDS_AT: Final = NOTES_AT + 2 * NOTE.size
STACKS_AT: Final = RECORDS_AT + RECORDS * RECORD.size
DUMP_AT: Final = STACKS_AT + STACKS.size
"""The dump of the stacks of a rank whose Python does not run, up to the end of the memory."""
NBYTES: Final = DUMP_AT + DUMP_BYTES

Memory = bytes | mmap.mmap

_INDEX: Final = struct.Struct("<Q")

_MOST_LINES: Final = 12
_MOST_CHARACTERS: Final = 300  # of a line
_MOST_NAMES: Final = 3
_MOST_S: Final = 1e9  # of a wait


class Phase(IntEnum):
    """Where a rank is on its way from `init` to `shutdown`."""

    OUTSIDE = 0
    JOINING = 1
    INSIDE = 2


class Finding(NamedTuple):
    """Something that a rank found out about the job. ``facts`` are the facts in ``text`` as JSON.

    Of a stall they are the fields of `hvdlite.negotiation.delays.stall.Stalled`, and of a straggler those of
    `hvdlite.negotiation.delays.straggler.Straggler`. `launcher.reports` checks them.
    """

    kind: str
    text: str
    facts: Mapping[str, Any]


class Record(NamedTuple):
    """A completed batch. ``position`` counts the batches of all groups of this rank from 0.

    ``group`` is the number of a process set, and ``number`` counts the batches of that group. ``kind`` is the number of
    the collective (`hvdlite.negotiation.messages.Kind`), and ``name`` is the first tensor's. See
    `hvdlite.negotiation.replica.Work` for ``nbytes`` and the times. ``last_rank`` is negative if unknown.
    """

    position: int
    group: int
    number: int
    tensors: int
    nbytes: int
    sent_at: float
    agreed_at: float
    moved_at: float
    done_at: float
    waited_s: float
    last_rank: int
    late_s: float
    kind: int
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
    memory: Memory

    def records(self) -> list[Record]:
        """Returns the latest batches, in their order."""
        found = (_record(self.memory, slot) for slot in range(RECORDS))
        return sorted(record for record in found if record is not None)

    def last(self) -> Record | None:
        """Returns the latest batch; of the others only the index is read."""
        return next(newest(self.memory), None)


def newest(memory: Memory) -> Iterator[Record]:
    """Yields the latest batches in ``memory``, of NBYTES, from the last one backwards."""

    def index_of(turn: int) -> int:
        return int(_INDEX.unpack_from(memory, RECORDS_AT + turn % RECORDS * RECORD.size)[0])

    # From the first batch's slot on, some slots belong to the current round, and the rest to the round before.
    first = index_of(1)
    written = bisect_left(range(1, RECORDS + 1), True, key=lambda turn: index_of(turn) < first)
    last = index_of(written)
    for index in range(last, max(last - RECORDS, 0), -1):
        record = _record(memory, index % RECORDS)
        if record is not None and record.position == index - 1:  # else it is being overwritten
            yield record


def findings(memory: Memory, after: int) -> list[tuple[int, Finding]]:
    """Returns the findings in ``memory``, of NBYTES, with numbers above ``after``, in their order."""
    found = []
    for at in range(FINDINGS_AT, NOTES_AT, FINDING.size):
        if _INDEX.unpack_from(memory, at)[0] > after:  # the rest is long, so only new ones are read
            number, _, fields = _text(memory, FINDING, at)
            if isinstance(fields, list) and [type(each) for each in fields] == [str, str, dict]:
                found.append((number, Finding(*fields)))
    return sorted(found)


def quantity(memory: Memory, row: Quantity) -> float:
    """Returns the value of ``row`` in ``memory``, of NBYTES; 0 if it is not finite."""
    value = float(NUMBER.unpack_from(memory, QUANTITIES_AT + row.slot * NUMBER.size)[0])
    return value if math.isfinite(value) else 0.0


def quantities(memory: Memory) -> Quantities:
    """Returns the quantities in ``memory``, of NBYTES."""
    return {row: quantity(memory, row) for row in of_ranks()}


def stacks(memory: Memory, asked: int) -> Mapping[str, Any] | None:
    """Returns the answer in ``memory``, of NBYTES, to question ``asked`` or a later one; None if there is none."""
    number, _, answer = _text(memory, STACKS, STACKS_AT)
    return answer if number >= asked and isinstance(answer, dict) else None


def make() -> int:
    """Returns a descriptor of new memory for one rank, of fixed size. Raises OSError."""
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
    return look(memory)


def look(memory: Memory) -> BlackBox | None:
    """Returns the contents of ``memory``, of NBYTES, which may change; None if no rank has begun to write to it."""
    mark, pid, rank, size, phase = HEAD.unpack_from(memory)
    if mark != MARK or phase not in tuple(Phase):
        return None
    noted_at, note = max((_note(memory, slot) for slot in range(2)), key=lambda found: found[0])
    return BlackBox(pid, rank, size, Phase(phase), noted_at, note, memory)


def write_quantities(memory: mmap.mmap, quantities: Quantities) -> None:
    """Writes the quantities of a rank."""
    for row, value in quantities.items():
        NUMBER.pack_into(memory, QUANTITIES_AT + row.slot * NUMBER.size, value)


def write_text(memory: mmap.mmap, form: struct.Struct, at: int, number: int, text: bytes, *fields: float) -> None:
    """Writes what `_text` reads."""
    form.pack_into(memory, at, number, *fields, len(text), text, number)


def _note(memory: Memory, slot: int) -> tuple[float, Mapping[str, Any]]:
    _, times, note = _text(memory, NOTE, NOTES_AT + slot * NOTE.size)
    return (times[0], note) if isinstance(note, dict) else (0.0, {})


def _text(memory: Memory, form: struct.Struct, at: int) -> tuple[int, list[Any], Any]:
    """Returns the number at ``at``, the fields before the length, and the value of the text or None."""
    number, *fields, length, text, again = form.unpack_from(memory, at)
    if number == again != 0 and length <= len(text):
        with suppress(ValueError):
            return number, fields, parse(text[:length])
    return 0, fields, None


def _record(memory: Memory, slot: int) -> Record | None:
    index, *rest, name, again = RECORD.unpack_from(memory, RECORDS_AT + slot * RECORD.size)
    if not index == again != 0:
        return None
    return Record._make((index - 1, *rest, name.rstrip(b"\0").decode(errors="replace")))


# ---- for people


def describe(box: BlackBox, at: float, ago: str = "before its end") -> list[str]:
    """What a rank did before ``at``, on the host's monotonic clock: a few lines, the latest first.

    ``ago`` follows the number of seconds, as in "1.5 s before its end".
    """
    if box.phase is Phase.JOINING:
        return ["it was in init(), and not all ranks had come"]
    if box.phase is Phase.OUTSIDE:
        return ["it had left the job by shutdown()"]
    lines = []
    if (last := box.last()) is not None:
        what = f"{last.tensors} tensors, {last.name!r} and others" if last.tensors > 1 else repr(last.name)
        lines.append(
            f"{at - last.done_at:.1f} s {ago} it finished batch {last.number} ({what}), the last of {last.position + 1}"
        )
    else:
        lines.append("it had finished no collective")
    if box.noted_at:
        lines.append(f"{at - box.noted_at:.1f} s {ago} {_in_flight(box.note)}")
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
    waits = isinstance(waiting_s, (int, float)) and 0 < waiting_s < _MOST_S
    return f"it {f'had waited for {waiting_s:.1f} s' if waits else 'was at work'}, with {listed} in flight"


def _texts(value: object) -> list[str]:
    texts = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    return [printable(" ".join(each.split())) for each in texts]


def printable(text: str) -> str:
    """``text`` with a question mark for each character that is not printable: a terminal might obey it."""
    return "".join(character if character.isprintable() else "?" for character in text)
