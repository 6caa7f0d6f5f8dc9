"""Texts about where the threads of ranks are, of what agents answered (`launcher.agent.inspection.look`).

Agents run on other machines and may send anything, so each field is checked and shortened. Threads with equal stacks
are shown once, with their ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hvdlite.members.ranges import named

from ..agents.fields import printable

INNERMOST_FIRST: Final = "(the innermost call of each stack is on top)"
_WIDTH: Final = 200  # characters of a line
_MOST_STACKS: Final = 64
_MOST_CALLS: Final = 30
_MOST_THREADS: Final = 64  # of a rank
_MOST_CHILDREN: Final = 16
_NOT_THE_USERS: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "/importlib/")

_STATES: Final = {
    "R": "runs",
    "S": "sleeps",
    "D": "cannot be interrupted (a disk or a network file system?)",
    "T": "is stopped",
    "t": "is stopped by the program that traces it",
    "Z": "has ended",
}
_NO_STATE: Final = "is there"
_MOVED: Final = "goes on, and was here for a moment"
_STARVED: Final = "gets no processor, or waits for its memory to be read from a disk"


@dataclass(frozen=True)
class Call:
    """One call of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_of_a_library(self) -> bool:
        """True if it is not in a file of the user's own, but perhaps in hvdlite."""
        return self.file.startswith("<frozen") or any(part in self.file for part in _NOT_THE_USERS)

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'[:_WIDTH]


@dataclass(frozen=True)
class ThreadOfRank:
    """One thread, and what it does."""

    name: str
    is_main: bool
    does: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Looked:
    """What an agent saw of a rank."""

    rank: int
    host: str
    pid: int
    words: tuple[str, ...]
    """What is special about the process."""
    threads: tuple[ThreadOfRank, ...]
    ours: str
    """The folder of hvdlite."""

    @property
    def place(self) -> Call | None:
        """Where the main thread is in the user's code."""
        calls = [call for thread in self.threads if thread.is_main for call in thread.calls]
        users = (
            call for call in calls if not call.is_of_a_library and not (self.ours and call.file.startswith(self.ours))
        )
        return next(users, calls[-1] if calls else None)


def looked(rank: int, host: str, answer: object) -> Looked:
    """Reads the ``answer`` of the agent of ``host`` about ``rank``, whatever it is."""
    fields = answer if isinstance(answer, Mapping) else {}
    threads = [_thread(each) for each in _list(fields.get("threads"))[:_MOST_THREADS]]
    return Looked(
        rank, host, _number(fields.get("pid")), tuple(_words(fields)), tuple(threads), _text(fields.get("ours"))
    )


def as_lines(ranks: Sequence[Looked]) -> Iterator[str]:
    """What is to be said of ``ranks``: first what is special about some, then the stacks, equal ones once."""
    for each in ranks:
        where = f"rank {each.rank} on {each.host}, process {each.pid},"
        yield from (f"{where} {word}"[:_WIDTH] for word in each.words)
    groups: dict[tuple[bool, str, tuple[Call, ...]], list[tuple[int, str]]] = {}
    for each in ranks:
        for thread in each.threads:
            key = (not thread.is_main, "" if thread.is_main else thread.name, thread.calls)
            groups.setdefault(key, []).append((each.rank, thread.does))
    order = sorted(groups.items(), key=lambda group: (min(rank for rank, _ in group[1]), group[0][0]))
    for (is_other, name, calls), members in order[:_MOST_STACKS]:
        which = f"thread {name!r}" if is_other and name else "a thread" if is_other else "the main thread"
        yield f"{named(rank for rank, _ in members)}: {which} {_done(members)}"[:_WIDTH]
        yield from (f"  {call}" for call in calls)
    if len(order) > _MOST_STACKS:
        yield f"and {len(order) - _MOST_STACKS} other stacks"


def _done(members: Sequence[tuple[int, str]]) -> str:
    """What the threads do that have the same stack."""
    ranks_of: dict[str, list[int]] = {}
    for rank, does in members:
        ranks_of.setdefault(does, []).append(rank)
    if len(ranks_of) == 1:
        return members[0][1]
    return ", ".join(f"{does} ({named(ranks)})" for does, ranks in ranks_of.items())


def _words(fields: Mapping[str, Any]) -> Iterator[str]:
    if tracer := _text(fields.get("tracer")):
        yield f"is traced by {tracer}"
    if fields.get("reads_stdin") is True:
        yield "waits for input: it reads stdin"
    if why := _text(fields.get("why")):
        yield f"tells no stacks: {why}"
    if fields.get("way") == "signal":
        is_starved = fields.get("is_starved") is True
        yield f"{_STARVED if is_starved else 'holds the GIL in native code'}: no Python of it runs"
    for child in _list(fields.get("children"))[:_MOST_CHILDREN]:
        if isinstance(child, Mapping):
            threads = [_thread(each) for each in _list(child.get("threads"))[:1]]
            does = threads[0].does if threads else _NO_STATE
            tracer = _text(child.get("tracer"))
            traced = f", and is traced by {tracer}" if tracer else ""
            who = f"{_text(child.get('command'))!r}, process {_number(child.get('pid'))}"
            yield f"has started {who}, which {does}{traced}"


def _thread(fields: object) -> ThreadOfRank:
    told = fields if isinstance(fields, Mapping) else {}
    calls = [
        Call(_text(each[0]), _number(each[1]), _text(each[2]))
        for each in _list(told.get("calls"))[:_MOST_CALLS]
        if isinstance(each, list) and len(each) == 3
    ]
    return ThreadOfRank(_text(told.get("name")), told.get("is_main") is True, _does(told), tuple(calls))


def _does(fields: Mapping[str, Any]) -> str:
    """The state of a thread in words: "sleeps in futex (futex_wait_queue)"."""
    state, syscall, wchan = (_text(fields.get(name)) for name in ("state", "syscall", "wchan"))
    if fields.get("moved") is True:
        return _MOVED
    words = _STATES.get(state, _NO_STATE)
    if state == "S" and fields.get("awake") is True:
        words += " again and again"
    if state in ("S", "D") and (syscall or wchan):
        words += f" in {syscall}" if syscall else ""
        words += f" ({wchan})" if wchan else ""
    return words


def _text(value: object) -> str:
    return printable(value[:_WIDTH]) if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
