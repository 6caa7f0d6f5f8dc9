"""The messages between hvdrun and its agents.

The agent's stream begins with `GREETING` and `Hello`. hvdrun may then `Ask`, and every question gets one `Answer`, in
any order. It sends `Start` once, `Signal` as often as it likes and `End` when no rank is left; the end of its stream
without `End` means that it died. The agent sends `Started` or `Failed` once for each rank, then output, then `Exited`:
a worker's output comes before the news of its end. `Stopped` and `Found` may come between.

`Lease` and `Alive` are the signs of life between hvdrun and an agent of another host. `Open`, `Data` and `Close` carry
connections that the workers of such a host make to hvdrun. `Input` carries what a rank may read, of which the agent
holds no more than a window; `Taken` opens it again.

`decode` is the only place where frames become messages. It checks types, ranges and lengths, so what arrives may come
from anywhere. Two things it cannot check: whether a rank is one of the agent's, and what is in an answer. Bytes travel
as they are, behind the numbers of their message; everything else is JSON.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, cast

from hvdlite.blackbox.format import FINDING_BYTES, NBYTES, Finding
from hvdlite.blackbox.times import MOST_S, Spent

from .fields import (
    Figure,
    Line,
    Yes,
    each,
    exactly,
    integer,
    line,
    mapping,
    number,
    one_of,
    optional,
    parse_fields,
    read,
    row,
    text,
)
from .frames import FrameError, FrameReader, pack
from .hello import Hello
from .signals import ANNOUNCING, ENDING

if TYPE_CHECKING:
    from .questions import Question

_NUMBER: Final = struct.Struct("!I")
_MOST_NUMBER: Final = (1 << 32) - 1  # of ranks and channels
_MOST_CODE: Final = 255
_MOST_PID: Final = 1 << 22  # Linux has none above
_MOST_SIGNAL: Final = 64
_MOST_LINES: Final = 20
_MOST_BOX: Final = 2 * NBYTES  # characters: a black box grows when it becomes text
_ANY: Final = (1 << 63) - 1  # lengths of what hvdrun itself sends are limited by the frame

_is_bool, _is_text, _is_number = exactly(bool), exactly(str), integer(0, _MOST_NUMBER)
_texts = mapping(_is_text)
blame: Final = row(lambda rank, fate: (rank, fate), (_is_number, line()))
"""The check of a list with a rank that caused the end of another, and the fate of that rank."""

Number = Annotated[int, _is_number]
Pid = Annotated[int, integer(1, _MOST_PID)]
Text = Annotated[str, _is_text]
Texts = Annotated[Mapping[str, str], _texts]
Json = Annotated[Any, lambda value: value]
Bytes = Annotated[bytes, exactly(bytes)]


# ---- from hvdrun to an agent


class WorkerStart(NamedTuple):
    """One rank to start; ``reads`` is true if it gets `Input`."""

    rank: int
    environment: Mapping[str, str]
    reads: bool


class Start(NamedTuple):
    """Start ``workers`` in the folder ``cwd``.

    They have ``environment``, and if it ``inherits``, the agent's as well; the paths of ``appended`` are added to its.
    The agent has sockets of the names in ``listen`` for these services. Ranks have ``grace_s`` to end if the agent ends
    them by itself. If it ``keeps_boxes``, hvdrun wants the black boxes of ranks that end.
    """

    cwd: Text
    command: Annotated[tuple[str, ...], each(_is_text, _ANY)]
    environment: Texts
    appended: Texts
    inherits: Yes
    listen: Texts
    workers: Annotated[tuple[WorkerStart, ...], each(row(WorkerStart, (_is_number, _texts, _is_bool)), _MOST_NUMBER)]
    grace_s: Figure
    keeps_boxes: Yes


class Signal(NamedTuple):
    """Send ``signum`` to every process of every worker, or without ``everyone`` to the ranks themselves."""

    signum: Annotated[int, integer(1, _MOST_SIGNAL)]
    everyone: Yes


class End(NamedTuple):
    """End what the workers left behind: SIGTERM after ``patience_s``, SIGKILL ``grace_s`` later."""

    patience_s: Figure
    grace_s: Figure


def _question(what: str, fields: object) -> Any:
    from .questions import QUESTIONS

    return read(QUESTIONS[what], fields)


class Ask(NamedTuple):
    """A question, one of `launcher.stream.questions`."""

    id: Number
    question: Annotated["Question", row(_question, (_is_text, exactly(dict)))]

    @property
    def what(self) -> str:
        """The name of the question, by which it travels and is found in tables of answers."""
        return type(self.question).__name__


class Lease(NamedTuple):
    """hvdrun lives, and has sent this at ``sent``; it will send the next within ``for_s``, None for at any time."""

    sent: Figure
    for_s: Annotated[float | None, optional(number())]


class Files(NamedTuple):
    """The next bytes of an archive."""

    data: Bytes


class Input(NamedTuple):
    """What ``rank`` may read from its stdin; no bytes are the end of the file."""

    rank: Number
    data: Bytes


# ---- in both directions


class Data(NamedTuple):
    """Bytes of the connection ``channel``."""

    channel: Number
    data: Bytes


class Close(NamedTuple):
    """The connection ``channel`` has ended."""

    channel: Number


# ---- from an agent to hvdrun


class Started(NamedTuple):
    """``rank`` is process ``pid``."""

    rank: Number
    pid: Pid


class Failed(NamedTuple):
    """``rank`` could not be started."""

    rank: Number
    reason: Line


class Stdout(NamedTuple):
    """What ``rank`` wrote to stdout."""

    rank: Number
    data: Bytes


class Stderr(NamedTuple):
    """What ``rank`` wrote to stderr."""

    rank: Number
    data: Bytes


class Exited(NamedTuple):
    """``rank`` has ended, at ``time`` on the monotonic clock of its host.

    A ``code`` below 0 is a signal, that of the kernel if it ``is_oom``. ``ended_by`` is the rank because of which the
    session of this one ended, and the fate of that rank. ``agent`` describes an agent that had given up before, as in
    "which got SIGTERM", and is empty for any other. ``last`` are lines about what the rank did before it ended. It ran
    ``is_alone`` if it showed no sign of other ranks.
    """

    rank: Number
    pid: Pid
    code: Annotated[int, integer(-_MOST_CODE, _MOST_CODE)]
    time: Figure
    is_oom: Yes
    ended_by: Annotated[tuple[int, str] | None, optional(blame)]
    agent: Line
    last: Annotated[tuple[str, ...], each(line(), _MOST_LINES)]
    spent: Annotated[Spent | None, optional(row(Spent, (number(0.0, MOST_S),) * len(Spent._fields)))]
    is_alone: Yes


class Answer(NamedTuple):
    """The answer to the question ``id``, which whoever asked has to check; or an ``error``, else empty."""

    id: Number
    answer: Json
    error: Line


class Alive(NamedTuple):
    """The answer to the `Lease` that was ``sent`` then: ``time`` is now on the monotonic clock of the host."""

    sent: Figure
    time: Figure


class Signalled(NamedTuple):
    """A scheduler has asked all processes of the job on this host to end, or announced that it will."""

    signum: Annotated[int, one_of((*ENDING, *ANNOUNCING))]


class Open(NamedTuple):
    """A worker has connected to the socket of ``service``."""

    channel: Number
    service: Text


class Taken(NamedTuple):
    """So many bytes of `Input` are in the pipe of ``rank``; None: nobody reads it."""

    rank: Number
    nbytes: Annotated[int | None, optional(integer(1, _MOST_NUMBER))]


class Stopped(NamedTuple):
    """A signal stopped ``rank`` a while ago, and it has not gone on."""

    rank: Number
    pid: Pid


class Found(NamedTuple):
    """What ``rank`` wrote to its black box for people."""

    rank: Number
    finding: Annotated[Finding, row(Finding, (_is_text, line(FINDING_BYTES), exactly(dict)))]


class Box(NamedTuple):
    """The black box of ``rank``, which has ended: see `launcher.agent.inspection.watch.packed`."""

    rank: Number
    at: Annotated[float, number()]
    epoch_s: Annotated[float, number(-float(_ANY))]
    box: Annotated[str, text(_MOST_BOX)]


# ---- on the stream

ToAgent: TypeAlias = Start | Signal | End | Ask | Lease | Files | Input | Data | Close
OfRank: TypeAlias = Started | Failed | Exited | Taken | Stopped | Found | Box
FromAgent: TypeAlias = OfRank | Stdout | Stderr | Answer | Signalled
"""What an agent sends to the job; `AgentLink` takes the rest."""
Message: TypeAlias = ToAgent | FromAgent | Hello | Alive | Open

KINDS: Final[Mapping[int, type[Message]]] = {
    1: Start, 2: Signal, 3: End, 4: Started, 5: Failed, 6: Exited, 7: Stdout, 8: Stderr, 9: Hello, 10: Ask, 11: Answer,
    12: Lease, 13: Open, 14: Data, 15: Close, 16: Files, 17: Input, 18: Taken, 19: Stopped, 20: Found, 21: Box,
    22: Signalled, 23: Alive,
}  # fmt: skip
_KIND_OF: Final = {what: kind for kind, what in KINDS.items()}
_OF_BYTES: Final = frozenset({Stdout, Stderr, Input, Data, Files})  # their last field holds the bytes


def encode(message: Message) -> bytes:
    """The frame of a message. Raises FrameError if that is larger than the other side accepts."""
    if type(message) in _OF_BYTES:
        *numbers, data = cast(tuple[Any, ...], message)
        payload = b"".join([*map(_NUMBER.pack, numbers), data])
    else:
        fields = message._asdict()
        if isinstance(message, Ask):
            fields["question"] = message.what, message.question._asdict()
        payload = json.dumps(fields).encode()
    return pack(_KIND_OF[type(message)], payload)


def decode(kind: int, payload: bytes) -> Message:
    """The message in the payload of a frame of this kind. Raises FrameError if it is none."""
    what: type[Any] = KINDS[kind]
    message: Message
    if what not in _OF_BYTES:
        message = read(what, parse_fields(payload))
        return message
    size = _NUMBER.size * (len(what._fields) - 1)
    if len(payload) < size:
        raise FrameError(f"the message {what.__name__} is too short")
    message = what(*(found for (found,) in _NUMBER.iter_unpack(payload[:size])), payload[size:])
    return message


class Decoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._frames = FrameReader(KINDS)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yields the messages that ``data`` completes. Raises FrameError at the first that is none."""
        for kind, payload in self._frames.feed(data):
            yield decode(kind, payload)
