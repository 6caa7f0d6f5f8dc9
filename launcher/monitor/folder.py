"""The folder where the running hvdruns of this user have their sockets.

That is ``hvdlite`` in ``$XDG_RUNTIME_DIR``, else in ``/run/user/UID``, else a folder for temporary files that names the
user. Its owner must be this user, and nobody else may enter it, or it is not used. A socket is called after the process
that made it, so those that a killed hvdrun left behind are recognised.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"(\d{1,10})-[0-9a-f]{1,64}\.sock")
_PRIVATE: Final = 0o700
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders that may be used, the best first. A command may have another environment than the hvdrun it asks."""
    if above := environ.get("XDG_RUNTIME_DIR"):
        yield Path(above) / "hvdlite"
    yield Path(f"/run/user/{os.geteuid()}/hvdlite")
    for above in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        yield Path(above) / f"hvdlite-{os.geteuid()}"


def make(environ: Mapping[str, str]) -> int:
    """Returns a descriptor of the best folder that can be had. Raises OSError if there is none."""
    problem: OSError | None = None
    for path in candidates(environ):
        try:
            with suppress(FileExistsError):
                path.mkdir(_PRIVATE)
            return _opened(path)
        except OSError as error:
            problem = error
    raise problem or FileNotFoundError


def leave(folder: int) -> None:
    """Closes the descriptor ``folder``, and removes the folder if nobody else has a socket there."""
    with suppress(OSError):
        os.rmdir(os.readlink(f"/proc/self/fd/{folder}"))
    os.close(folder)


def existing(environ: Mapping[str, str]) -> Iterator[int]:
    """A descriptor of each folder that is there, which the caller closes."""
    for path in dict.fromkeys(candidates(environ)):
        with suppress(OSError):
            yield _opened(path)


def sockets(folder: int) -> dict[int, str]:
    """The names of the sockets, by the process that made each."""
    return {int(match[1]): match[0] for name in os.listdir(folder) if (match := _NAME.fullmatch(name))}


def address(folder: int, name: str) -> str:
    """The address of the socket ``name``. It is short however long the path is, and no link can lead elsewhere."""
    return f"/proc/self/fd/{folder}/{name}"


def remove_stale(folder: int) -> None:
    """Removes the sockets of processes that have ended and could not."""
    for pid, name in sockets(folder).items():
        if not Path(f"/proc/{pid}").exists():
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.setblocking(False)
                try:
                    probe.connect(address(folder, name))  # a process of another container may listen
                except ConnectionRefusedError:
                    os.unlink(name, dir_fd=folder)


def _opened(path: Path) -> int:
    folder = os.open(path, _FLAGS)
    found = os.fstat(folder)
    if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return folder
    os.close(folder)
    raise PermissionError(f"{path} is not private")
