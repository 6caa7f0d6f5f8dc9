"""Opens descriptors: checks that there are enough, and opens files at paths that a user names.

ZeroMQ silently retries for ever when it gets no descriptor for a connection. So `check_descriptors` opens as many as
will be needed, and closes them again.

Links that another user may have planted are not followed. The kernel follows them even for root, unless
fs.protected_symlinks is on and the folder is sticky.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from hvdlite.errors import HorovodInternalError

_LOCAL = 18  # of the segment, the arena, the engine and the listener
_ACROSS = 24  # of ZeroMQ, the rings and the rendezvous, which ends later
_PER_NEIGHBOUR = 3  # of the same host: two at its leader, and its bell
_MOST_LINKS: Final = 40  # as the kernel's
_ROOT: Final = 0
_OPEN_TO_ALL: Final = stat.S_ISVTX | stat.S_IWOTH


def check_descriptors(local_size: int, hosts: int) -> None:
    """Raises HorovodInternalError if this process cannot open what a rank among so many ranks and hosts may need."""
    needed = _LOCAL + _PER_NEIGHBOUR * local_size + (_ACROSS + hosts if hosts > 1 else 0)
    tried: list[int] = []
    try:
        for _ in range(needed):
            tried.append(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError as error:
        raise HorovodInternalError(
            f"this process can open only {len(tried)} more files, and its connections need up to {needed}: "
            f"{error.strerror}. Raise the limit: ulimit -n 65536, or nofile in /etc/security/limits.conf, on each host."
        ) from None
    finally:
        for descriptor in tried:
            os.close(descriptor)


def followed(path: str | Path) -> Path:
    """Follows the links at the end of ``path``, which may lead to nothing. Raises OSError.

    Each must belong to this user or root. A link of /proc, such as /dev/stdout, is left to the kernel.
    """
    path = Path(path).absolute()
    for _ in range(_MOST_LINKS):
        try:
            link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return path
        try:
            found = os.fstat(link)
            if not stat.S_ISLNK(found.st_mode) or _is_of_proc(found):
                return path
            if found.st_uid not in (os.geteuid(), _ROOT):
                raise PermissionError(errno.EACCES, "it is a link that another user has made", str(path))
            path = path.parent / os.readlink("", dir_fd=link)
        finally:
            os.close(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def opened(path: str | Path, flags: int) -> int:
    """Opens or creates the file at ``path`` with ``flags``, and returns its descriptor. Raises OSError.

    In a folder that all may write to, such as /tmp, a file of another user is refused, and one with hard links, since
    another user may have made the name.
    """
    path = followed(path)
    flags |= os.O_CREAT | os.O_CLOEXEC
    if not _is_of_proc(os.stat(path.parent)):
        flags |= os.O_NOFOLLOW  # of a link that comes now
    descriptor = os.open(path, flags & ~os.O_TRUNC, 0o666)
    try:
        file, folder = os.fstat(descriptor), os.stat(path.parent)
        is_open_to_all = folder.st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL
        if is_open_to_all and stat.S_ISREG(file.st_mode):
            if file.st_uid not in (os.geteuid(), folder.st_uid):
                raise PermissionError(errno.EACCES, "it is a file that another user has put there", str(path))
            if file.st_nlink > 1:
                raise PermissionError(errno.EACCES, "it has hard links, which another user may have made", str(path))
        if flags & os.O_TRUNC and stat.S_ISREG(file.st_mode):
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write(path: str | Path, data: bytes) -> None:
    """Makes ``data`` the contents of the file at ``path``. Raises as `opened`."""
    with open(opened(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(data)


def _is_of_proc(found: os.stat_result) -> bool:
    return found.st_dev == os.stat("/proc/self").st_dev
