"""Compiles the kernels' library once for each user, version of TensorFlow and kind of machine.

The library is in a folder of the user's cache, which is refused if anybody else may write there. One process compiles,
and the others wait for its lock, which the kernel releases when the process ends. The library is written under another
name and renamed, so it is always complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("kernels.cc")
_COMPILERS: Final = ("g++", "c++", "clang++")
_OPTIONS: Final = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-Wl,--no-as-needed")
_COMPILING_S: Final = 120.0


class CannotCompile(Exception):
    """The library cannot be made; the text has the reason."""


def library(cache: Path, version: str, links: Sequence[str] = ()) -> Path:
    """Returns the library for ``version`` of TensorFlow in a folder of ``cache``, and makes it if necessary.

    ``links`` are the compiler's options for TensorFlow's own libraries. Raises CannotCompile.
    """
    try:
        folder = _own_folder(cache)
        path = folder / _name(version)
        if not _is_ours(path):
            compiler = _compiler()
            with _locked(folder):
                if not _is_ours(path):
                    _compile(compiler, path, links)
    except OSError as error:
        raise CannotCompile(f"{error.strerror or error}: {error.filename or cache}") from error
    return path


def obstacle(cache: Path, version: str) -> str:
    """Returns why `library` would fail; empty if it would probably not. Makes nothing."""
    folder = cache / "hvdlite"
    try:
        if folder.exists():
            _check(folder, os.lstat(folder), stat.S_ISDIR)
            if _is_ours(folder / _name(version)):
                return ""
        _compiler()
    except (OSError, CannotCompile) as error:
        return str(error)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def _name(version: str) -> str:
    recipe = hashlib.sha256(SOURCE.read_bytes() + " ".join(_OPTIONS).encode()).hexdigest()
    return f"tensorflow-{version}-{platform.machine()}-{'-'.join(platform.libc_ver())}-{recipe[:16]}.so"


def _own_folder(cache: Path) -> Path:
    folder = cache / "hvdlite"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(folder, os.lstat(folder), stat.S_ISDIR)
    return folder


def _is_ours(path: Path) -> bool:
    """True if the file exists. Raises CannotCompile if anybody else may write to it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    _check(path, found, stat.S_ISREG)
    return True


def _check(path: Path, found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CannotCompile(f"{path} belongs to somebody else, or others may write to it; remove it or set its mode")


def _compiler() -> str:
    for name in _COMPILERS:
        if found := shutil.which(name):
            return found
    raise CannotCompile(f"there is no compiler ({', '.join(_COMPILERS)})")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _compile(compiler: str, path: Path, links: Sequence[str]) -> None:
    for left in path.parent.glob(f"{path.name}.*"):  # by a killed process
        left.unlink()
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    command = [compiler, *_OPTIONS, *links, str(SOURCE), "-o", str(fresh)]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMPILING_S)
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"{compiler} took more than {_COMPILING_S:.0f} s") from None
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["no message"]
        raise CannotCompile(f"{compiler} ended with code {ended.returncode}: {lines[0]}")
    fresh.chmod(0o700)
    fresh.replace(path)
