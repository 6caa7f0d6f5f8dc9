"""Collapses equal tracebacks of several ranks: shows the first one, and says which other ranks wrote the same.

The first rank's lines pass at once. A line of a later rank is held only while its traceback so far equals one that is
on the screen, so the reader knows it already. At the first line that differs, all held lines pass. A traceback is also
held for a moment when it is ahead of the one that began first: of ranks that fail together, none is always the fastest.

Lines are compared without the numbers that differ from rank to rank: ranks, process ids, memory addresses. This is pure
bookkeeping on the lines of one stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from hvdlite.members.ranges import shortened

AHEAD_S: Final = 0.5  # for the first rank to catch up
QUIET_S: Final = 2.0  # a traceback that does not go on for so long has ended
REPORT_S: Final = 0.5  # for further ranks that have the same
RECENT_S: Final = 30.0  # what is longer ago has left the screen
_MAX_LINES: Final = 2000  # of one traceback
_MAX_REST: Final = 20  # lines behind one, which may be the rest of its message
_MAX_KNOWN: Final = 8

_START: Final = re.compile(rb"\s*(\+ Exception Group )?Traceback \(most recent call last\):|  File \"")
_LINK: Final = re.compile(rb"(The above exception was the direct|During handling of the above) ")
_GROUP_END: Final = re.compile(rb"\s+\+-{20,}$")
_OF_TORCH: Final = re.compile(rb"\[rank\d+\]:\s?")
_OWN_NUMBERS: Final = re.compile(
    rb"(?i)(\b0x)[0-9a-f]+"
    rb"|(\b(?:(?:rank|pid)(?:s|\(s\))?|process)[ =:_]*|(?:process|poolworker)-)\d+(?:(?:, |:)\d+)*"  # SpawnProcess-1:2
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of ``rank``, to be shown."""

    rank: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Same:
    """A note that ``ranks`` wrote the same traceback as ``first``, the last one shown if ``is_last``."""

    ranks: tuple[int, ...]
    first: int
    is_last: bool

    def __str__(self) -> str:
        return f"[{shortened(self.ranks)}]: the same" + ("" if self.is_last else f" as [{self.first}]")


@dataclass(slots=True)
class _Traceback:
    """The lines of ``rank``, as they are compared; its last error ends before line ``end``, 0 for none yet."""

    rank: int
    changed: float
    lines: list[bytes] = field(default_factory=list)
    end: int = 0
    is_linked: bool = False  # another one follows that belongs to it
    is_closed: bool = False  # no more can come
    same: set[int] = field(default_factory=set)  # ranks that wrote the same and were not reported yet

    def add(self, text: bytes, line: bytes, now: float) -> None:
        """Adds the next line. Too many lines that do not belong to a traceback end it."""
        is_behind_error = bool(self.end) and not self.is_linked
        is_next = self.end == len(self.lines)
        self.lines.append(line)
        self.changed = now
        is_indented, is_blank = text[:1].isspace(), not text.strip()
        if is_behind_error:
            self.is_linked = _LINK.match(text) is not None
            if is_next and is_indented and not is_blank:  # the rest of a message
                self.end = len(self.lines)
        elif _GROUP_END.match(text) or not (is_indented or is_blank or _START.match(text)):
            self.end, self.is_linked = len(self.lines), False
        self.is_closed = len(self.lines) - (self.end or len(self.lines)) > _MAX_REST or len(self.lines) >= _MAX_LINES

    def may_grow(self, now: float) -> bool:
        return not self.is_closed and now - self.changed < QUIET_S


@dataclass(slots=True)
class _Follower:
    """A rank whose traceback so far equals the beginnings of ``like``: ``texts`` are held, ``lines`` are compared."""

    like: list[_Traceback]
    changed: float
    texts: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)


class Repeats:
    """Decides which lines are shown, and when. Times are monotonic; `tick` is due at `deadline`."""

    def __init__(self) -> None:
        self._known: list[_Traceback] = []  # the oldest first
        self._leaders: dict[int, _Traceback] = {}  # ranks whose traceback is shown as it comes
        self._followers: dict[int, _Follower] = {}
        self._pids: dict[int, re.Pattern[bytes]] = {}
        self._report_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """The time of the next `tick`, or None."""
        times = [follower.changed + self._patience_s(follower) for follower in self._followers.values()]
        return min(times if self._report_at is None else [*times, self._report_at], default=None)

    def name(self, rank: int, pid: int) -> None:
        """Process ``pid`` is ``rank``."""
        self._pids[rank] = re.compile(rb"\b%d\b" % pid)

    def concerns(self, rank: int, texts: Sequence[bytes]) -> bool:
        """False if `feed` would just show ``texts``; cheaper than `feed`."""
        is_busy = rank in self._followers or rank in self._leaders or self._report_at is not None
        return is_busy or any(b"Traceback (" in text or text.startswith(b'  File "') for text in texts)

    def feed(self, rank: int, texts: Iterable[bytes], now: float) -> Iterator[Line | Same]:
        """The lines to show now that ``rank`` has written ``texts``."""
        for text in texts:
            bare = _OF_TORCH.sub(b"", text, count=1)
            line = self._comparable(rank, text)
            if rank in self._followers:
                yield from self._follow(rank, text, bare, line, now)
            else:
                yield from self._lead(rank, text, bare, line, now)

    def end(self, rank: int, now: float) -> Iterator[Line | Same]:
        """The lines to show now that ``rank`` will write no more."""
        self._close(rank)
        for each, follower in tuple(self._followers.items()):
            is_over = each == rank or self._is_ahead(follower)
            if is_over and not any(known.may_grow(now) for known in follower.like):
                yield from self._decide(each, now)

    def tick(self, now: float) -> Iterator[Line | Same]:
        """The lines that were held long enough."""
        for rank, follower in tuple(self._followers.items()):
            if now >= follower.changed + self._patience_s(follower):
                yield from self._decide(rank, now)
        if self._report_at is not None and now >= self._report_at:
            yield from self._report()

    def flush(self, now: float) -> Iterator[Line | Same]:
        """All lines that are still held."""
        for rank in tuple(self._followers):
            yield from self._decide(rank, now)
        yield from self._report()

    def _follow(self, rank: int, text: bytes, bare: bytes, line: bytes, now: float) -> Iterator[Line | Same]:
        follower = self._followers[rank]
        index = len(follower.lines)
        like = [
            known
            for known in follower.like
            if (known.lines[index] == line if index < len(known.lines) else known.may_grow(now))
        ]
        if like and index < _MAX_LINES:
            follower.like, follower.changed = like, now
            follower.texts.append(text)
            follower.lines.append(line)
        else:
            yield from self._decide(rank, now)
            yield from self._lead(rank, text, bare, line, now)

    def _lead(self, rank: int, text: bytes, bare: bytes, line: bytes, now: float) -> Iterator[Line | Same]:
        leader = self._leaders.get(rank)
        if _START.match(bare) and (leader is None or (leader.end and not leader.is_linked)):
            self._close(rank)
            if like := self._alike(rank, line, now):
                self._followers[rank] = _Follower(like, now, [text], [line])
                return
            leader = self._begin(rank, now)
        yield from self._show(rank, [text])
        if leader is not None:
            leader.add(bare, line, now)
            if leader.is_closed:
                self._close(rank)
            yield from self._part(leader, now)

    def _part(self, leader: _Traceback, now: float) -> Iterator[Line | Same]:
        """Separates ``leader`` from ranks that were ahead of it and wrote another line than its last one."""
        index = len(leader.lines) - 1
        for rank, follower in tuple(self._followers.items()):
            if leader in follower.like and index < len(follower.lines) and follower.lines[index] != leader.lines[index]:
                if len(follower.like) > 1:
                    follower.like.remove(leader)
                else:
                    yield from self._decide(rank, now)

    def _decide(self, rank: int, now: float) -> Iterator[Line | Same]:
        """Counts the traceback of ``rank`` as a repetition of one that it equals, or shows it."""
        follower = self._followers.pop(rank)
        known = max(follower.like, key=lambda each: each.end)
        common = _common(known.lines, follower.lines)
        if 0 < known.end <= common:
            known.same.add(rank)
            self._report_at = now + REPORT_S
            yield from self._show(rank, follower.texts[common:])
            return
        yield from self._show(rank, follower.texts)
        leader = self._begin(rank, now)
        for text, line in zip(follower.texts, follower.lines, strict=True):
            leader.add(_OF_TORCH.sub(b"", text, count=1), line, now)

    def _begin(self, rank: int, now: float) -> _Traceback:
        leader = self._leaders[rank] = _Traceback(rank, now)
        self._known = [*self._known[1 - _MAX_KNOWN :], leader]
        return leader

    def _show(self, rank: int, texts: Sequence[bytes]) -> Iterator[Line | Same]:
        if texts and any(rank in known.same for known in self._known):
            yield from self._report()
        yield from (Line(rank, text) for text in texts)

    def _report(self) -> Iterator[Line | Same]:
        self._report_at = None
        for known in self._known:
            if known.same:
                yield Same(tuple(sorted(known.same)), known.rank, known is self._known[-1])
                known.same.clear()

    def _alike(self, rank: int, line: bytes, now: float) -> list[_Traceback]:
        return [
            known
            for known in self._known
            if known.rank != rank and now - known.changed < RECENT_S and known.lines[0] == line
        ]

    def _close(self, rank: int) -> None:
        if leader := self._leaders.pop(rank, None):
            leader.is_closed = True

    def _comparable(self, rank: int, text: bytes) -> bytes:
        if pid := self._pids.get(rank):
            text = pid.sub(b"PID", text)
        return _OWN_NUMBERS.sub(rb"\1\2N", text)

    @staticmethod
    def _is_ahead(follower: _Follower) -> bool:
        return all(len(follower.lines) > len(known.lines) for known in follower.like)

    def _patience_s(self, follower: _Follower) -> float:
        return AHEAD_S if self._is_ahead(follower) else QUIET_S


def _common(lines: Sequence[bytes], others: Sequence[bytes]) -> int:
    """The number of equal lines at the beginning."""
    pairs = enumerate(zip(lines, others, strict=False))
    return next((index for index, (line, other) in pairs if line != other), min(len(lines), len(others)))
