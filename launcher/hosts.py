"""Lists of hosts as users write them: ``-H a:4,b`` and host files.

One parser reads both. A line of a host file is ``name``, ``name:4`` or ``name slots=4``; ``#`` begins a comment.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hvdlite.errors import BadHostSpec

_NAME = r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])"
_SPEC = re.compile(rf"{_NAME}(?:(?::|\s+slots\s*=\s*)(?P<slots>\d+))?")


@dataclass(frozen=True, slots=True)
class Host:
    """A host and how many ranks it takes; ``slots`` is None where the user left that open."""

    name: str
    slots: int | None = None


def parse_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of a comma-separated list. Raises BadHostSpec naming the part that is wrong."""
    if "/" in text or Path(text).is_file():
        raise BadHostSpec(f"-H takes host names, and {text!r} looks like a file; did you mean --hostfile {text}?")
    return _parse(text.split(","), "-H")


def read_hostfile(path: str) -> tuple[Host, ...]:
    """The hosts of a file. Raises BadHostSpec naming the line that is wrong, or why the file cannot be read."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadHostSpec(f"--hostfile {path} cannot be read: {reason}.") from None
    specs = (line.partition("#")[0] for line in lines)
    return _parse((spec for spec in specs if spec.strip()), f"--hostfile {path}")


def is_local(name: str) -> bool:
    """Whether ``name`` is this machine."""
    own = socket.gethostname()
    return name in {"localhost", "127.0.0.1", "[::1]", own, own.partition(".")[0]}


def _parse(specs: Iterable[str], source: str) -> tuple[Host, ...]:
    hosts = []
    for spec in specs:
        match = _SPEC.fullmatch(spec.strip())
        slots = match and match["slots"]
        if match is None or (slots and int(slots) == 0):
            raise BadHostSpec(f"{source}: {spec.strip()!r} is not a host; write name or name:slots, as in localhost:4.")
        hosts.append(Host(match["name"], int(slots) if slots else None))
    if not hosts:
        raise BadHostSpec(f"{source} lists no host; write name:slots, as in localhost:4.")
    return tuple(hosts)
