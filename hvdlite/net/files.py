"""Opens files at paths that a user names, and follows no link that another user may have planted there.

The kernel follows a planted link even for root, unless fs.protected_symlinks is on and the folder is sticky.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 40  # as the kernel's
_ROOT: Final = 0
_OPEN_TO_ALL: Final = stat.S_ISVTX | stat.S_IWOTH


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

    A file that another user has put into a folder that all may write to, such as /tmp, is refused.
    """
    path = followed(path)
    flags |= os.O_CREAT | os.O_CLOEXEC
    if not _is_of_proc(os.stat(path.parent)):
        flags |= os.O_NOFOLLOW  # of a link that comes now
    descriptor = os.open(path, flags & ~os.O_TRUNC, 0o666)
    try:
        file, folder = os.fstat(descriptor), os.stat(path.parent)
        is_open_to_all = folder.st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL
        if is_open_to_all and stat.S_ISREG(file.st_mode) and file.st_uid not in (os.geteuid(), folder.st_uid):
            raise PermissionError(errno.EACCES, "it is a file that another user has put there", str(path))
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
