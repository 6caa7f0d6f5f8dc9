"""--sync: copies the working directory to hosts that do not share it, through the agents' own connections.

The files that git would commit are copied, so ``.gitignore`` is honoured; outside of a repository everything is copied
except files that no program needs. The copy stays on each host, in a folder particular to this host, user and folder:
what ranks write into it is kept, and the next --sync updates what has changed. Files that were copied before and have
been deleted here are removed there.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

from hvdlite.errors import CannotStart, LaunchError

from ..stream.messages import Files
from ..stream.questions import Unpack
from .agents import Agents

MAX_BYTES: Final = 256 << 20
_LEFT_OUT: Final = frozenset({".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "node_modules"})
_PIECE_BYTES: Final = 256 << 10
_STALL_S: Final = 30.0
_UNPACK_S: Final = 120.0


def copy_folder(agents: Agents, hosts: Sequence[str], folder: Path, report: Callable[[str], None]) -> dict[str, str]:
    """Copies ``folder`` to all ``hosts`` at once and returns where it is on each. Reports the amount with ``report``.

    Raises LaunchError if it is too large, and CannotStart naming a host that cannot store it.
    """
    with tempfile.TemporaryFile() as archive:
        count = pack(folder, archive)
        size = os.fstat(archive.fileno()).st_size
        report(f"--sync sends {count} file(s), {-(-size >> 10)} KiB packed, to {', '.join(hosts)}")
        _send(agents, hosts, archive)
    answers = agents.ask(dict.fromkeys(hosts, Unpack(_name_of(folder))), _UNPACK_S)
    return {host: str(path) for host, path in answers.items()}


def pack(folder: Path, archive: IO[bytes]) -> int:
    """Writes a tar of the files and returns their number. Raises LaunchError if they exceed MAX_BYTES."""
    count, total, root = 0, 0, os.path.realpath(folder)
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
        for name in sorted(_names(folder)):
            path = folder / name
            target = Path(os.path.realpath(path))
            if path.is_symlink() and not target.is_relative_to(root):
                path = target  # it leads out of what is copied
            if not (path.is_symlink() or path.is_file()):
                continue
            count += 1
            total += path.lstat().st_size
            if total > MAX_BYTES:
                raise LaunchError(
                    f"--sync copies at most {MAX_BYTES >> 20} MB, and there is more in {folder}; "
                    "list what the ranks do not need in .gitignore, or use a shared disk."
                )
            link = os.path.relpath(target, os.path.realpath(path.parent))
            tar.add(path, name, recursive=False, filter=partial(_with_link, link))
    archive.flush()
    return count


def _with_link(link: str, member: tarfile.TarInfo) -> tarfile.TarInfo:
    """``member``, which leads to ``link`` if it is a symbolic link: an absolute path would lead out of the copy."""
    return member.replace(linkname=link, deep=False) if member.issym() else member


def _names(folder: Path) -> Iterator[str]:
    """The files to copy, relative to ``folder``; some may have been deleted."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listed = b""  # no git, or no repository
    if listed:
        yield from {os.fsdecode(name) for name in listed.split(b"\0") if name}
        return  # else this folder is one that the repository around it ignores
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from (str((Path(parent) / name).relative_to(folder)) for name in [*files, *links])


def _name_of(folder: Path) -> str:
    owner = f"{socket.gethostname()}\n{os.getuid()}\n{folder}"
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", folder.name)[:40]
    return f"{readable or 'root'}-{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def _send(agents: Agents, hosts: Sequence[str], archive: IO[bytes]) -> None:
    size = os.fstat(archive.fileno()).st_size
    sent = dict.fromkeys(hosts, 0)
    moved_at = time.monotonic()
    while behind := [host for host in hosts if sent[host] < size or agents.links[host].waiting_bytes]:
        waiting = sum(agents.links[host].waiting_bytes for host in behind)
        for host in behind:
            link = agents.links[host]
            if link.is_over:
                raise CannotStart(host, f"{link.explain()}.")
            if not link.waiting_bytes and sent[host] < size:
                piece = os.pread(archive.fileno(), _PIECE_BYTES, sent[host])
                link.send(Files(piece))
                sent[host] += len(piece)
                moved_at = time.monotonic()
        has_room = any(not agents.links[host].waiting_bytes for host in behind)
        agents.loop.turn(time.monotonic() + (0.0 if has_room else 1.0))
        if sum(agents.links[host].waiting_bytes for host in behind) < waiting:
            moved_at = time.monotonic()
        if time.monotonic() > moved_at + _STALL_S:
            raise CannotStart(behind[0], f"it accepted no data of the working directory for {_STALL_S:.0f} s.")
