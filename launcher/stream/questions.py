"""Questions that hvdrun asks an agent (`launcher.stream.messages.Ask`), each with its fields.

An agent of hvdrun's own host is asked next to nothing, so agents import this module when the first question comes.
"""

import re
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args

from .fields import Count, Figure, Yes, each, exactly, integer, optional, row

_ANY: Final = (1 << 63) - 1  # lengths of what hvdrun itself sends are limited by the frame
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")  # of a folder, which is removed and made: it leads nowhere else

_is_text, _is_count, _is_port = exactly(str), integer(0, _ANY), integer(1, (1 << 16) - 1)

_Text = Annotated[str, _is_text]
_Ranks = Annotated[tuple[int, ...], each(_is_count, _ANY)]
_Ports = Annotated[tuple[int, int] | None, optional(row(lambda *both: both, (_is_port, _is_port)))]
"""The first and the last that may be used, None for any."""


def _name(value: Any) -> Any:
    if type(value) is not str or not _NAME.fullmatch(value):
        raise ValueError
    return value


# ---- about the host


class IsFolder(NamedTuple):
    """Is ``path`` a folder that this user may enter?"""

    path: _Text


class IsThere(NamedTuple):
    """Is there a file or folder ``path``?"""

    path: _Text


class FreePorts(NamedTuple):
    """Up to ``most`` TCP ports that are free on ``address``, in a list."""

    address: _Text
    ports: _Ports
    most: Annotated[int, _is_port]


class Unpack(NamedTuple):
    """Where is the archive, once it is unpacked into the folder ``name``?"""

    name: Annotated[str, _name]


class Network(NamedTuple):
    """Which interfaces are there?"""


class Machine(NamedTuple):
    """What hardware and which limits are there?"""


class Software(NamedTuple):
    """What is installed?"""


class Clock(NamedTuple):
    """What time is it?"""


# ---- a connect test


class Listen(NamedTuple):
    """Where can host number ``host`` listen? On each of ``addresses``, for ``lifetime_s`` at most."""

    token: _Text
    host: Count
    addresses: Annotated[tuple[str, ...], each(_is_text, _ANY)]
    ports: _Ports
    lifetime_s: Figure


class Target(NamedTuple):
    """Where host number ``host`` listens."""

    host: int
    address: str
    port: int


class Dial(NamedTuple):
    """How well are ``targets`` reached, each within ``timeout_s``? With ``bulk_s`` each is sent bytes for that long."""

    token: _Text
    targets: Annotated[tuple[Target, ...], each(row(Target, (_is_count, _is_text, _is_port)), _ANY)]
    timeout_s: Figure
    bulk_s: Figure


class Unlisten(NamedTuple):
    """Stop to listen."""


# ---- about ranks


class Status(NamedTuple):
    """What are these ranks doing?"""

    ranks: _Ranks


class Boxes(NamedTuple):
    """What is in the black boxes of these ranks?"""

    ranks: _Ranks


class Evidence(NamedTuple):
    """What did the sums of these ranks grow by in the last ``seconds``?"""

    ranks: _Ranks
    seconds: Figure


class Stacks(NamedTuple):
    """Where are the threads of these ranks, with those of hvdlite if ``all``?"""

    ranks: _Ranks
    all: Yes


OfRanks: TypeAlias = Status | Boxes | Evidence | Stacks
OfHost: TypeAlias = IsFolder | IsThere | FreePorts | Unpack | Network | Machine | Software | Clock
Question: TypeAlias = OfHost | Listen | Dial | Unlisten | OfRanks

QUESTIONS: Final[dict[str, type[Question]]] = {kind.__name__: kind for kind in get_args(Question)}
