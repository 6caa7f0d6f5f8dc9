"""Black boxes as PyTorch's flight recorder writes its own, for ``torchfrtrace``.

That reads one pickle of dictionaries and lists for each rank. It knows only PyTorch's names of collectives and of back
ends, and older ones only NCCL; behind a name may stand anything. Each batch is one entry; what is waited for has the
numbers that would come next, the same on all ranks. Shapes are not recorded, so a size is that of all elements in
bytes, and only of collectives for which it is the same on all ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hvdlite.blackbox.format import Record, printable

from .boxes import Box
from .groups import WORLD, Group

VERSION: Final = "2.10"
NAMES: Final[Mapping[int, str]] = {  # by the number of the kind
    0: "all_reduce",
    1: "all_gather_v",
    2: "broadcast",
    3: "barrier",
    4: "reduce_scatter_v",
    5: "all_to_all_v_single",
    6: "reduce",
    7: "gather",
    8: "scatter",
}
"""A kind without a name there, such as a message between two ranks, is left out."""
_OF_ONE_SIZE: Final = ("all_reduce", "broadcast", "reduce")

Entry = dict[str, Any]


def dumped(box: Box, groups: Mapping[int, Group]) -> bytes:
    """The file of one rank."""
    own = {number: group for number, group in groups.items() if box.rank in group.ranks}
    entries = sorted((entry for number, group in own.items() for entry in _entries(box, number, group)), key=_order)
    for position, entry in enumerate(entries):
        entry["record_id"] = entry["op_id"] = position
    dump = {
        "version": VERSION,
        "pg_config": {
            str(number): {"name": str(number), "desc": _described(number), "ranks": str(group.ranks)}
            for number, group in own.items()
        },
        "pg_status": {str(number): _status(group, box.rank) for number, group in own.items()},
        "entries": entries,
    }
    return pickle.dumps(dump, protocol=2)


def _entries(box: Box, group_number: int, group: Group) -> Iterator[Entry]:
    member = group.members.get(box.rank)
    done = member.done if member is not None else {}
    last = 0
    for last, record in group.batches:
        if record.kind in NAMES:
            yield _batch(box, group_number, last, done.get(last), record)
    for number, (tensor, having) in enumerate(group.waiting, last + 1):
        kind, name = tensor
        if box.rank in having and kind in NAMES:
            yield {
                **_entry(group_number, number, NAMES[kind], name),
                "state": "scheduled",
                "time_created_ns": box.nanoseconds(box.contents.noted_at),
                "frames": list(_frames(box.contents.note.get("stack"))),
            }


def _batch(box: Box, group: int, number: int, own: Record | None, one: Record) -> Entry:
    """A batch that ``own`` says this rank has finished, or of which ``one`` says that another has."""
    more = f" +{one.tensors - 1}" if one.tensors > 1 else ""
    entry = _entry(group, number, NAMES[one.kind], one.name + more)
    if NAMES[one.kind] in _OF_ONE_SIZE:
        entry["input_sizes"] = entry["output_sizes"] = [[one.nbytes]]
        entry["input_dtypes"] = entry["output_dtypes"] = ["Byte"]
    if own is None:
        return {**entry, "state": "started", "time_created_ns": box.nanoseconds(box.contents.noted_at)}
    return {
        **entry,
        "state": "completed",
        "retired": True,
        "time_created_ns": box.nanoseconds(own.sent_at),
        "time_discovered_started_ns": box.nanoseconds(own.moved_at),
        "time_discovered_completed_ns": box.nanoseconds(own.done_at),
        "duration_ms": 1e3 * (own.done_at - own.moved_at),
    }


def _entry(group: int, number: int, collective: str, name: str) -> Entry:
    return {
        "pg_id": group,
        "process_group": [str(group), _described(group)],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{collective} {printable(' '.join(name.replace(':', '_').split()))}",
        "input_sizes": [[]],
        "output_sizes": [[]],
        "input_dtypes": [],
        "output_dtypes": [],
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "duration_ms": None,
        "timeout_ms": 0,
        "retired": False,
        "is_p2p": False,
        "frames": [],
    }


def _order(entry: Entry) -> tuple[bool, int]:
    return entry["state"] != "completed", entry["time_discovered_completed_ns"] or entry["collective_seq_id"]


def _status(group: Group, rank: int) -> dict[str, int]:
    member = group.members.get(rank)
    completed = max(member.done, default=0) if member is not None else 0
    started = max((number for number, _ in group.batches), default=0)
    waiting = [number for number, (_, having) in enumerate(group.waiting, started + 1) if rank in having]
    return {
        "last_enqueued_collective": max([started, *waiting]),
        "last_started_collective": started,
        "last_completed_collective": completed,
    }


def _described(group: int) -> str:
    return "default_pg" if group == WORLD else f"process set {group}"


def _frames(stack: object) -> Iterator[dict[str, Any]]:
    """The main thread's calls, as they are noted: ``name, file:line``."""
    for call in stack if isinstance(stack, list) else ():
        name, _, place = printable(str(call)).partition(", ")
        file, _, line = place.rpartition(":")
        if line.isdecimal():
            yield {"name": name, "filename": file, "line": int(line)}
