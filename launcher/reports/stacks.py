"""Texts about where the threads of ranks are, of what agents answered (`launcher.agent.inspection.look`).

Threads with equal stacks are shown once, with their ranks.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple

from hvdlite.members.ranges import named

from ..stream.fields import Count, Short, Yes, each, integer, read, record, row, short

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


class Call(NamedTuple):
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


_call: Final = row(Call, (short, integer(0, 1 << 63), short))


class Thread(NamedTuple):
    """One thread, as the kernel and Python describe it."""

    name: Short = ""
    is_main: Yes = False
    state: Short = ""
    syscall: Short = ""
    wchan: Short = ""
    calls: Annotated[tuple[Call, ...], each(_call, _MOST_CALLS)] = ()
    moved: Yes = False
    awake: Yes = False

    @property
    def does(self) -> str:
        """The state in words: "sleeps in futex (futex_wait_queue)"."""
        if self.moved:
            return _MOVED
        words = _STATES.get(self.state, _NO_STATE)
        if self.state == "S" and self.awake:
            words += " again and again"
        if self.state in ("S", "D") and (self.syscall or self.wchan):
            words += f" in {self.syscall}" if self.syscall else ""
            words += f" ({self.wchan})" if self.wchan else ""
        return words


_threads: Final = each(record(Thread), _MOST_THREADS)


class Child(NamedTuple):
    """A process below one that is no rank yet."""

    pid: Count = 0
    command: Short = ""
    tracer: Short = ""
    threads: Annotated[tuple[Thread, ...], _threads] = ()

    def __str__(self) -> str:
        does = self.threads[0].does if self.threads else _NO_STATE
        traced = f", and is traced by {self.tracer}" if self.tracer else ""
        return f"{self.command!r}, process {self.pid}, which {does}{traced}"


class Looked(NamedTuple):
    """What an agent saw of a rank; ``ours`` is the folder of hvdlite."""

    rank: Count
    host: Short
    pid: Count = 0
    tracer: Short = ""
    reads_stdin: Yes = False
    way: Short = ""
    is_starved: Yes = False
    why: Short = ""
    ours: Short = ""
    threads: Annotated[tuple[Thread, ...], _threads] = ()
    children: Annotated[tuple[Child, ...], each(record(Child), _MOST_CHILDREN)] = ()

    @property
    def words(self) -> Iterator[str]:
        """What is special about the process."""
        if self.tracer:
            yield f"is traced by {self.tracer}"
        if self.reads_stdin:
            yield "waits for input: it reads stdin"
        if self.why:
            yield f"has no stacks: {self.why}"
        if self.way == "signal":
            yield f"{_STARVED if self.is_starved else 'holds the GIL in native code'}: no Python of it runs"
        yield from (f"has started {child}" for child in self.children)

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
    try:
        return read(Looked, {**(answer if isinstance(answer, dict) else {}), "rank": rank, "host": host})
    except ValueError as error:
        return Looked(rank, host, why=str(error))


def as_lines(ranks: Sequence[Looked]) -> Iterator[str]:
    """The lines about ``ranks``: first what is special about some, then the stacks, equal ones once."""
    for look in ranks:
        where = f"rank {look.rank} on {look.host}, process {look.pid},"
        yield from (f"{where} {word}"[:_WIDTH] for word in look.words)
    groups: dict[tuple[bool, str, tuple[Call, ...]], list[tuple[int, str]]] = {}
    for look in ranks:
        for thread in look.threads:
            key = (not thread.is_main, "" if thread.is_main else thread.name, thread.calls)
            groups.setdefault(key, []).append((look.rank, thread.does))
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
