"""What the ranks of this host are doing, from their black boxes and the kernel: it costs the ranks nothing.

Rates are those of a window that ends now, so nothing is kept from one question to the next. A step is counted by a
name that comes again: the one that most of the window's batches begin with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, TypeGuard, cast

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import Phase, Record
from hvdlite.blackbox.times import MOST_S, add_up
from hvdlite.host.proc import memory_of, stat_of
from hvdlite.metrics.table import MEMORY_BYTES, Quantities, by_name

_WINDOW_S: Final = 10.0
_SHORTEST_S: Final = 0.5
_LONGEST_S: Final = 60.0  # of a window that waits for a name to come again
_MOST_RECORDS: Final = 512
_MOST_NAMES: Final = 2
_WORLD: Final = 0  # the number of the group of all ranks


def status_of(rank: int, worker: int, memory: blackbox.Memory | None, now: float) -> dict[str, Any]:
    """Describes ``rank``, in the process session of ``worker``, at ``now`` on the monotonic clock."""
    found: dict[str, Any] = {"rank": rank, "pid": worker, "at": now}
    box = blackbox.look(memory) if memory is not None else None
    quantities: Quantities = {} if box is None else blackbox.quantities(box.memory)
    with suppress(OSError):  # the worker may be a shell that has started the rank
        if box is not None and stat_of(box.pid).session == worker:
            found["pid"] = box.pid
    with suppress(OSError):
        stat = stat_of(found["pid"])
        found |= {"state": stat.state, "cpu_s": stat.cpu_s}
        quantities[MEMORY_BYTES] = memory_of(found["pid"])
    found["quantities"] = by_name(quantities)
    if box is None:
        return found
    found["phase"] = box.phase.name
    if box.phase is Phase.INSIDE:
        last = box.last()
        found |= _in_flight(box, last, now)
        found["rates"] = rates(blackbox.newest(box.memory), now) or None
        if last is not None and math.isfinite(last.done_at):
            found["last"] = {"name": last.name, "tensors": last.tensors, "at": last.done_at}
    return found


def rates(records: Iterable[Record], now: float) -> dict[str, Any]:
    """Adds up the latest batches, of which ``records`` has the last first; empty if there are too few.

    The quantities are those of the last ``span_s``. Where it is known, ``late_s`` has for how long all others had
    waited for which rank.
    """
    window: list[Record] = []
    times: dict[str, list[float]] = {}  # of the batches that begin with each name
    for record in records:
        if not (math.isfinite(record.done_at - record.moved_at) and math.isfinite(record.agreed_at + record.waited_s)):
            continue
        age_s = now - record.done_at
        recurs = bool(window) and len(times[window[0].name]) > 1
        if len(window) == _MOST_RECORDS or age_s > _LONGEST_S or (age_s > _WINDOW_S and recurs):
            break
        window.append(record)
        times.setdefault(record.name, []).append(record.done_at)
    if len(window) < 2:
        return {}
    counted = window[:-1]  # each covers the time since the one before
    most = max(times.values(), key=len)
    sums, _ = add_up(counted)
    _, late_s = add_up(record for record in counted if record.group == _WORLD)
    return {
        **by_name(sums),
        "span_s": now - window[-1].done_at,
        "steps": len(most) - 1,
        "steps_per_s": _per_s(most, now) if len(most) > 1 else None,
        "late_s": [(rank, sum(each)) for rank, each in late_s.items()],
    }


def _per_s(times: list[float], now: float) -> float | None:
    """How often something happens that happened at ``times``, of which the last is first. It may be overdue.

    None if all of them were just now.
    """
    if now - times[-1] < _SHORTEST_S:
        return None
    between_s = max((times[0] - times[-1]) / (len(times) - 1), now - times[0])
    return 1 / between_s if between_s > 0 else None


def _in_flight(box: blackbox.BlackBox, last: Record | None, now: float) -> dict[str, Any]:
    """What was in flight when the rank noted it, within the last second; and its wait, if no batch has ended since.

    For ``unagreed_s`` of that nothing was agreed, for want of the rank ``missing``, if that is known.
    """
    note, since_s = box.note, max(0.0, now - box.noted_at)
    found = {"in_flight": note.get("in_flight", 0), "waiting_s": 0.0, "unagreed_s": 0.0, "names": list[Any]()}
    waiting_s, unagreed_s, names = note.get("waiting_s"), note.get("unagreed_s"), note.get("names")
    is_over = last is not None and box.noted_at < last.done_at
    if is_over or not (_is_time(waiting_s) and _is_time(unagreed_s) and math.isfinite(since_s)) or waiting_s <= 0:
        return found
    found["waiting_s"] = waiting_s + since_s
    if unagreed_s > 0:
        found |= {"unagreed_s": unagreed_s + since_s, "missing": note.get("missing")}
    found["names"] = [str(name) for name in names[:_MOST_NAMES]] if isinstance(names, list) else []
    return found


def _is_time(value: object) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 <= cast(float, value) < MOST_S
