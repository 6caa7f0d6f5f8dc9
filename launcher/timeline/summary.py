"""Where the time of a job went, from its timeline: what was hidden, who waited, which tensors were slow. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from hvdlite.blackbox.times import Classes, add_up, divide, spent
from hvdlite.members.ranges import named
from hvdlite.metrics.table import MOVED_S

from .trace import RankTrace, first_us, records

_SLOWEST: Final = 10
_MOST_UNFINISHED: Final = 20
_US: Final = 1e6


@dataclass(slots=True)
class Waits:
    """What one rank did while batches ran, and for how long others waited for it, each time that it was late."""

    moved_s: float
    spent: Classes
    late_s: list[float] = field(default_factory=list)

    @property
    def hidden(self) -> float:
        """The share of moving during which the program did something else than wait."""
        return max(0.0, 1 - self.spent.moving_s / self.moved_s) if self.moved_s else 1.0


@dataclass(slots=True)
class Slowness:
    """A tensor on all ranks: how often it ran, and for how long its batches were negotiated and moved in all."""

    described: str
    runs: int = 0
    negotiated_s: float = 0.0
    moved_s: float = 0.0


def duration_s(traces: Sequence[RankTrace]) -> float:
    """Returns the time from the first span to the last, of ranks whose clocks agree."""
    times = [at for trace in traces for batch in trace.batches.values() for span in batch.spans.values() for at in span]
    return (max(times) - min(times)) / _US if times else 0.0


def waits(traces: Sequence[RankTrace]) -> dict[int, Waits]:
    """Returns the waits by rank."""
    whole_s, late_s = duration_s(traces), dict[int, list[float]]()
    found = {}
    for trace in traces:
        sums, late = add_up(records(trace))
        found[trace.rank] = Waits(sums[MOVED_S], divide(whole_s, spent(sums, whole_s)))
        for rank, seconds in late.items():
            late_s.setdefault(rank, []).extend(seconds)
    for rank in found.keys() & late_s.keys():
        found[rank].late_s = late_s[rank]
    return found


def slowest(traces: Sequence[RankTrace]) -> list[tuple[str, Slowness]]:
    """Returns the tensors that took longest in all, with their names."""
    found: dict[str, Slowness] = {}
    for trace in traces:
        for (number, _), batch in trace.batches.items():
            for name, dtype, shape, _, negotiated_us in batch.args.get("tensors", ()):
                key = f"{name} (set {number})" if number else name
                tensor = found.setdefault(key, Slowness(_described(dtype, shape)))
                tensor.runs += 1
                tensor.negotiated_s += (negotiated_us or 0.0) / _US
                tensor.moved_s += batch.moved_s
    return sorted(found.items(), key=lambda item: -item[1].negotiated_s - item[1].moved_s)[:_SLOWEST]


def describe(traces: Sequence[RankTrace]) -> Iterator[str]:
    """Yields the lines of the summary."""
    by_host: defaultdict[str, int] = defaultdict(int)
    for trace in traces:
        by_host[trace.host] += 1
    batches = max(len(trace.batches) for trace in traces)
    counted = "1 batch" if batches == 1 else f"{batches} batches"
    whole_s = duration_s(traces)
    yield f"{len(traces)} rank(s) on {len(by_host)} host(s), {whole_s:.3f} s, {counted}"
    if dropped := sum(trace.dropped for trace in traces):
        yield f"{dropped} more batches are missing, because they came faster than they could be written"
    yield from _unfinished(traces)
    by_rank = waits(traces)
    moved_s = sum(each.moved_s for each in by_rank.values())
    hidden_s = sum(each.hidden * each.moved_s for each in by_rank.values())
    if moved_s:
        yield f"communication took {moved_s / len(traces):.3f} s a rank; {hidden_s / moved_s:.0%} of it was hidden"
    yield ""
    yield "rank      moved  hidden  waited for it  waited for others  was last  late by  host"
    for trace in traces:
        own = by_rank[trace.rank]
        yield (
            f"{trace.rank:>4}  {own.moved_s:>7.3f} s  {own.hidden:>6.0%}  {own.spent.moving_s:>11.3f} s  "
            f"{own.spent.waiting_s:>15.3f} s  {len(own.late_s):>8}  {sum(own.late_s):>5.3f} s  {trace.host}"
        )
    yield ""
    yield "negotiated       moved    runs  slowest tensors, mean of all runs on all ranks"
    for name, tensor in slowest(traces):
        yield (
            f"{1e3 * tensor.negotiated_s / tensor.runs:>7.3f} ms  {1e3 * tensor.moved_s / tensor.runs:>7.3f} ms  "
            f"{tensor.runs:>6}  {name}, {tensor.described}"
        )


def _unfinished(traces: Sequence[RankTrace]) -> Iterator[str]:
    """The tensors that had not completed when the timeline ended: who submitted each, and who did not."""
    first = first_us(traces)
    found: dict[tuple[int, str, str], dict[int, float]] = {}
    for trace in traces:
        for wait in trace.waits.values():
            name, dtype, shape = wait.tensor
            since = found.setdefault((wait.number, name, _described(dtype, shape)), {})
            since[trace.rank] = min(wait.since, since.get(trace.rank, wait.since))
    ordered = sorted(found.items(), key=lambda item: min(item[1].values()))
    for (number, name, described), since in ordered[:_MOST_UNFINISHED]:
        lacking = [] if number else [trace.rank for trace in traces if trace.rank not in since]
        others = f"; {named(lacking)} did not submit it" if lacking else ""
        of_set = f" (set {number})" if number else ""
        yield (
            f"not completed: {name}{of_set}, {described}, which {named(since)} submitted "
            f"at {(min(since.values()) - first) / _US:.3f} s{others}"
        )
    if len(ordered) > _MOST_UNFINISHED:
        yield f"not completed: {len(ordered) - _MOST_UNFINISHED} more tensors"


def _described(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"
