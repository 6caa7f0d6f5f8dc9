"""Finds shared libraries of NVIDIA in this process, among its Python packages, or on the system.

A framework may have loaded one already, from a place where the system would not look. That one is used, since two
copies in a process would have two states, and its version is the one that the framework was tested with.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hvdlite.errors import NativeUnavailable

Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""The result and the parameters of each function, by its name."""
ErrCheck = Callable[[Any, Any, tuple[Any, ...]], Any]
"""Gets the result, the function and the arguments of a call, and returns its result or raises."""

# Flags are added to the flags of a library that is loaded already; these change nothing.
_IF_LOADED: Final = os.RTLD_NOLOAD | os.RTLD_LAZY
_CACHE: Final = Path("/etc/ld.so.cache")  # has the name of each library in the system's folders


def load(soname: str, package: str = "") -> ctypes.CDLL:
    """Loads ``soname``: the library that this process has loaded, else the Python ``package``'s, else the system's.

    Raises NativeUnavailable with the reason of each attempt.
    """
    with suppress(OSError):  # the dynamic linker knows a library by this name wherever its file was, or is no more
        return ctypes.CDLL(soname, mode=_IF_LOADED)
    failures = []
    for candidate in (*_in_package(package, soname), soname):
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            failures.append(str(error))
    raise NativeUnavailable("; ".join(failures))


def is_loaded(soname: str) -> bool:
    """True if this process has loaded ``soname``."""
    try:
        ctypes.CDLL(soname, mode=_IF_LOADED)
    except OSError:
        return False
    return True


def is_installed(soname: str, package: str, environ: Mapping[str, str] = os.environ) -> bool:
    """True if `load` will probably find a file of ``soname``, which is not loaded."""
    if any(_in_package(package, soname)):
        return True
    folders = [*environ.get("LD_LIBRARY_PATH", "").split(":"), f"{sys.prefix}/lib"]  # the latter is Conda's
    if any(os.path.exists(f"{folder}/{soname}") for folder in folders if folder):
        return True
    with suppress(OSError):
        return b"\0" + soname.encode() + b"\0" in _CACHE.read_bytes()
    return False


def declare(library: ctypes.CDLL, signatures: Signatures, path: str, check: ErrCheck) -> None:
    """Gives the functions of ``library``, the file ``path``, their types. Those that return an int are checked.

    Raises NativeUnavailable, naming the file, if one is missing.
    """
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise NativeUnavailable(f"{path} has no function {name}; install a newer version") from None
        function.argtypes = arguments
        function.restype = result
        if result is ctypes.c_int:
            function.errcheck = check


def file_of(library: ctypes.CDLL, function: str) -> str:
    """Returns the path of the file that ``function`` of ``library`` comes from."""
    found = _DlInfo()
    address = ctypes.cast(getattr(library, function), ctypes.c_void_p)
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_DlInfo))
    return os.fsdecode(found.file) if dladdr(address, ctypes.byref(found)) and found.file else str(library._name)


class _DlInfo(ctypes.Structure):
    """``Dl_info`` of the dynamic linker."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _in_package(package: str, soname: str) -> Iterator[str]:
    for folder in _folders_of(package) if package else ():
        path = Path(folder, "lib", soname)
        if path.exists():
            yield str(path)


def _folders_of(package: str) -> Sequence[str]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # no parent package, or one that is no package
        return ()
    return list(spec.submodule_search_locations or ()) if spec else ()
