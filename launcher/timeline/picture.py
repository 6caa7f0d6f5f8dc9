"""Draws a timeline as SVG: the lanes of each rank, and an arrow for each batch. Pure.

What is narrower than a part of a pixel is left out where something was drawn already, so a picture has a size that the
length of the timeline does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import floor, log10
from typing import Final

from hvdlite.blackbox.format import printable

from .trace import LANES, Batch, RankTrace, first_us

_LEFT: Final = 96
_WIDTH: Final = 1088  # of the lanes
_RIGHT: Final = 32
_LANE: Final = 14
_HEAD: Final = 24
_AXIS: Final = 34
_LEGEND: Final = 26
_FINEST: Final = 0.25  # of a pixel
_MOST_ARROWS: Final = 200
_MOST_WAITS: Final = 200  # of a rank
_SHOWN_WAIT: Final = 0.1  # of the time before it: what is drawn of one behind which nothing came
_COLOURS: Final = dict(zip(LANES, ("#b9b4a7", "#e3a857", "#c96f5c", "#4c8c6b", "#6a8fb8"), strict=True))
_UNFINISHED: Final = "#c0392b"
_MEANINGS: Final = {
    "queue": "queue: submitted",
    "negotiate": "negotiate: until all ranks have submitted",
    "wait": "wait: for the batch before",
    "move": "move: bytes",
    "finish": "finish: until the program has the result",
}


def covered_us(traces: Sequence[RankTrace]) -> tuple[float, float]:
    """Returns when the first span began and when a picture of all of ``traces`` ends, by their clock."""
    first = first_us(traces)
    ends = [end for trace in traces for batch in trace.batches.values() for _, end in batch.spans.values()]
    last = max([first + 1.0, *ends])
    if waits := [wait.since for trace in traces for wait in trace.waits.values()]:
        last = max(last, *(trace.until for trace in traces), max(waits) + _SHOWN_WAIT * (max(waits) - first) + 1.0)
    return first, last


def draw(traces: Sequence[RankTrace], begin_s: float | None = None, end_s: float | None = None) -> str:
    """Returns the text of an SVG file of what ran between two times, in seconds since the first span."""
    first, last = covered_us(traces)
    begin = first if begin_s is None else first + begin_s * 1e6
    end = last if end_s is None else first + end_s * 1e6
    canvas = _Canvas(traces, begin, max(end, begin + 1.0), first)
    return "\n".join(canvas.lines())


class _Canvas:
    def __init__(self, traces: Sequence[RankTrace], begin: float, end: float, first: float) -> None:
        self._traces, self._begin, self._end, self._first = traces, begin, end, first
        self._rank_height = _HEAD + _LANE * len(LANES)
        self._bottom = _LEGEND + self._rank_height * len(traces)

    def lines(self) -> Iterator[str]:
        width, height = _LEFT + _WIDTH + _RIGHT, self._bottom + _AXIS
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="system-ui, sans-serif" font-size="11" fill="#333">'
        )
        yield f'<rect width="{width}" height="{height}" rx="6" fill="#fdfcfa"/>'
        yield from self._legend()
        yield from self._axis()
        for number, trace in enumerate(self._traces):
            yield from self._rank(trace, _LEGEND + number * self._rank_height)
        yield from self._arrows()
        yield "</svg>"

    def _legend(self) -> Iterator[str]:
        at = 12.0
        for lane in LANES:
            yield f'<rect x="{at:.0f}" y="9" width="10" height="10" fill="{_COLOURS[lane]}"/>'
            yield f'<text x="{at + 14:.0f}" y="18">{_MEANINGS[lane]}</text>'
            at += 34 + 5.8 * len(_MEANINGS[lane])

    def _axis(self) -> Iterator[str]:
        span_s = (self._end - self._begin) / 1e6
        step_s = 10.0 ** floor(log10(span_s / 4))
        step_s *= next(factor for factor in (1, 2, 5, 10) if span_s / (factor * step_s) <= 12)
        digits = max(0, -floor(log10(step_s * 1e3)))
        number = -(-(self._begin - self._first) // (step_s * 1e6))
        while (at := self._first + number * step_s * 1e6) <= self._end:
            x = self._x(at)
            yield f'<path d="M{x:.1f} {_LEGEND}V{self._bottom + 6}" stroke="#e4e0d8"/>'
            label = f"{number * step_s * 1e3:.{digits}f} ms"
            yield f'<text x="{x:.1f}" y="{self._bottom + 20}" text-anchor="middle">{label}</text>'
            number += 1

    def _rank(self, trace: RankTrace, top: float) -> Iterator[str]:
        yield from self._waits(trace, top)
        yield f'<text x="12" y="{top + 17}" font-weight="bold">rank {trace.rank} on {_text(trace.host)}</text>'
        for number, lane in enumerate(LANES):
            y = top + _HEAD + number * _LANE
            yield f'<text x="12" y="{y + 10}">{lane}</text>'
            drawn_to = 0.0
            spans = ((batch, batch.spans[lane]) for batch in trace.batches.values() if lane in batch.spans)
            for batch, (begin, end) in sorted(spans, key=lambda each: each[1]):
                if end < self._begin or begin > self._end:
                    continue
                left, right = self._x(begin), self._x(end)
                if right - drawn_to < _FINEST:
                    continue
                drawn_to = right
                yield (
                    f'<rect x="{left:.2f}" y="{y + 1}" width="{max(right - left, _FINEST):.2f}" height="{_LANE - 3}" '
                    f'fill="{_COLOURS[lane]}"><title>{_text(_title(batch, lane, end - begin))}</title></rect>'
                )

    def _waits(self, trace: RankTrace, top: float) -> Iterator[str]:
        """What was submitted and had not completed at the end, behind the lane in which it is."""
        y = top + _HEAD + LANES.index("negotiate") * _LANE
        for wait in sorted(trace.waits.values(), key=lambda each: each.since)[:_MOST_WAITS]:
            if wait.since <= self._end:
                left, right = self._x(wait.since), self._x(self._end)
                yield (
                    f'<rect x="{left:.2f}" y="{y + 1}" width="{max(right - left, _FINEST):.2f}" height="{_LANE - 3}" '
                    f'fill="none" stroke="{_UNFINISHED}" stroke-width="1.5" pointer-events="all">'
                    f"<title>{_text(f'not completed: {wait.what}')}</title></rect>"
                )

    def _arrows(self) -> Iterator[str]:
        """The decisions of rank 0, and where they lead to."""
        first, *others = self._traces
        batches = [
            (key, batch.spans["wait"][0])
            for key, batch in first.batches.items()
            if "wait" in batch.spans and self._begin <= batch.spans["wait"][0] <= self._end
        ]
        if len(batches) > _MOST_ARROWS:
            return
        y = _LEGEND + _HEAD + LANES.index("wait") * _LANE + _LANE / 2
        for key, decided in batches:
            for number, trace in enumerate(others, 1):
                batch = trace.batches.get(key)
                if batch is not None and "move" in batch.spans and batch.spans["move"][0] <= self._end:
                    moving = _LEGEND + number * self._rank_height + _HEAD + LANES.index("move") * _LANE + 1
                    line = f"M{self._x(decided):.1f} {y}L{self._x(batch.spans['move'][0]):.1f} {moving}"
                    yield f'<path d="{line}" fill="none" stroke="#555" stroke-width="0.6" opacity="0.55"/>'

    def _x(self, at: float) -> float:
        share = (at - self._begin) / (self._end - self._begin)
        return _LEFT + _WIDTH * min(1.0, max(0.0, share))


def _title(batch: Batch, lane: str, took_us: float) -> str:
    tensors = [str(tensor[0]) for tensor in batch.args.get("tensors", ())]
    what = ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
    return f"{lane} {took_us / 1e3:.3f} ms: {batch.name} of {what}"


def _text(text: str) -> str:
    return escape(printable(text))  # XML has no control characters, not even escaped
