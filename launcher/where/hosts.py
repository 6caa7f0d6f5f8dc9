"""Lists of hosts as users write them: ``-H a:4,me@b,n[01-16]:8`` and host files.

One parser reads both. A host is ``name``, ``user@name``, an IPv6 address in brackets, or a name with ranges of numbers
in brackets, which stands for several; then ``:4``, in a host file also `` slots=4``, is how many ranks it takes. Open
MPI's `` max_slots=8`` may follow, and is ignored. ``#`` begins a comment in a file. Anything that a shell or ssh would
not read as a name is refused.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvdlite.errors import BadHostSpec
from hvdlite.members.topology import MAX_RANKS

_RANGES: Final = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
_SPEC: Final = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*)@)?"
    rf"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]|{_RANGES})*|\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?\])"
    r"(?:(?::|\s+slots\s*=\s*)(?P<slots>\d+))?(?:\s+max[-_]slots\s*=\s*\d+)?"
)
_COMMA_OUTSIDE_BRACKETS: Final = re.compile(r",(?![^\[]*\])")
_WRITE: Final = "write name, name:slots or user@name:slots, as in localhost:4"
_WRITE_LINE: Final = "write name, 'name slots=4' or name:4 on each line"


@dataclass(frozen=True, slots=True)
class Host:
    """A host and how many ranks it takes; ``slots`` is None and ``user`` empty if not given.

    The name of an IPv6 address has its brackets. ``scheduler`` is the name of the one that starts processes there, in
    its ``job``; empty for a host that is reached by ssh. ``gpus`` is how many GPUs of the host an agent has to ask the
    scheduler for; 0 if it gets them anyway.
    """

    name: str
    slots: int | None = None
    user: str = ""
    scheduler: str = ""
    job: str = ""
    gpus: int = 0

    @property
    def address(self) -> str:
        """The address that ssh connects to."""
        bare = self.name.strip("[]")
        return f"{self.user}@{bare}" if self.user else bare


def parse_hosts(text: str, source: str = "-H") -> tuple[Host, ...]:
    """The hosts of a comma-separated list, from ``source``. Raises BadHostSpec naming the part that is wrong."""
    if source == "-H" and ("/" in text or Path(text).is_file()):
        raise BadHostSpec(f"-H takes host names, and {text!r} looks like a file; did you mean --hostfile {text}?")
    return _parse(((source, spec) for spec in _COMMA_OUTSIDE_BRACKETS.split(text)), _WRITE)


def read_hostfile(path: str, source: str = "--hostfile") -> tuple[Host, ...]:
    """The hosts of a file that ``source`` names.

    Raises BadHostSpec naming the line that is wrong, or why the file cannot be read.
    """
    lines = lines_of(path, f"{source} {path}")
    specs = ((f"{source} {path}, line {number}", line.partition("#")[0]) for number, line in enumerate(lines, 1))
    hosts = _parse(((place, spec) for place, spec in specs if spec.strip()), _WRITE_LINE)
    if not hosts:
        raise BadHostSpec(f"{source} {path} lists no host; {_WRITE_LINE}.")
    return hosts


def lines_of(path: str, what: str, advice: str = "") -> list[str]:
    """The lines of a file. Raises BadHostSpec that names ``what`` cannot be read, with ``advice``."""
    try:
        return Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadHostSpec(f"{what} cannot be read: {reason}{advice}.") from None


def is_local(name: str) -> bool:
    """True if ``name`` is this machine, or an address of it."""
    own, bare = socket.gethostname(), name.strip("[]")
    return bare in {"localhost", own, own.partition(".")[0]} or is_own_address(bare)


def own_names(hosts: Sequence[Host]) -> list[str]:
    """The names that this machine has among ``hosts``."""
    return list(dict.fromkeys(host.name for host in hosts if is_local(host.name)))


def is_own_address(text: str) -> bool:
    """True if ``text`` is an IP address of this machine."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(text).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((text, 0))
    except (ValueError, OSError):  # no address; not ours
        return False
    return True


def _parse(specs: Iterable[tuple[str, str]], form: str) -> tuple[Host, ...]:
    """The hosts of ``specs``, each with the place where it is written; ``form`` says how to write one."""
    hosts: list[Host] = []
    users: dict[str, str] = {}
    for source, spec in specs:
        match = _SPEC.fullmatch(spec.strip())
        if match is None:
            raise BadHostSpec(f"{source}: {spec.strip()!r} is not a host; {form}.")
        slots = match["slots"]
        if slots and int(slots) == 0:
            raise BadHostSpec(f"{source}: {spec.strip()!r} has no slots; a host takes at least 1, or leave it out.")
        user = match["user"] or ""
        for name in _expanded(match["name"], f"{source}: {spec.strip()!r}"):
            is_new = name not in users
            if users.setdefault(name, user) != user:
                raise BadHostSpec(f"{source}: {name} is listed with two users, {users[name]!r} and {user!r}.")
            if slots or is_new:  # without slots the host takes what it has, and no more if it is listed again
                hosts.append(Host(name, int(slots) if slots else None, user))
    return tuple(hosts)


def _expanded(name: str, where: str) -> Iterator[str]:
    """The names that a name with ranges stands for, in order: ``n[08-10]`` is n08, n09, n10."""
    if name.startswith("["):  # an address
        return iter((name,))
    parts = [_numbers(part, where) if part.startswith("[") else [part] for part in re.split(rf"({_RANGES})", name)]
    count = 1
    for choices in parts:
        count *= len(choices)
    if count > MAX_RANKS:
        raise BadHostSpec(f"{where} stands for {count} hosts; a job has at most {MAX_RANKS} ranks.")
    return map("".join, itertools.product(*parts))


def _numbers(ranges: str, where: str) -> list[str]:
    found: list[str] = []
    for part in ranges.strip("[]").split(","):
        first, _, last = part.partition("-")
        last = last or first
        if int(last) < int(first) or int(last) - int(first) > MAX_RANKS:
            raise BadHostSpec(f"{where}: the range {part} goes from {first} to {last}, which is not a list of hosts.")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
