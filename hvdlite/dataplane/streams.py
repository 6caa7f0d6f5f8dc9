"""The stream sockets of a ring: where a rank listens for its neighbour, and how it dials one.

Within a host these are abstract Unix sockets, which leave no file; across hosts TCP on one IP address.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Iterable
from typing import Any, Final

from hvdlite.errors import HorovodInternalError

_UNIX: Final = "unix://@"
_TCP: Final = "tcp://"


def listen(address: str | None, ports: range | None) -> socket.socket:
    """A non-blocking listener on the IP address ``address`` at one of ``ports`` (None: any that is free).

    ``address`` None: at a random name within this host. Raises HorovodInternalError that says what to change.
    """
    if address is None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0hvdlite-ring-{secrets.token_hex(16)}")
        listener.listen(socket.SOMAXCONN)
    else:
        listener = _listen_at(address, ports)
    listener.setblocking(False)
    return listener


def name_of(listener: socket.socket) -> str:
    """What `dial` takes to reach ``listener``."""
    where = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"{_UNIX}{where[1:].decode()}"
    host = f"[{where[0]}]" if listener.family == socket.AF_INET6 else where[0]
    return f"{_TCP}{host}:{where[1]}"


def dial(name: str) -> socket.socket:
    """A non-blocking socket that is connecting to ``name``. Raises OSError."""
    family, where = _parse(name)
    link = socket.socket(family, socket.SOCK_STREAM)
    link.setblocking(False)
    prepare(link)
    result = link.connect_ex(where)
    if result not in (0, errno.EINPROGRESS):
        link.close()
        raise OSError(result, os.strerror(result))
    return link


def prepare(link: socket.socket) -> None:
    """Small frames leave at once."""
    if link.family != socket.AF_UNIX:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _listen_at(address: str, ports: range | None) -> socket.socket:
    candidates: Iterable[int] = (0,) if ports is None else ports
    try:
        family, where = _numeric(address, 0)
        for port in candidates:
            listener = socket.socket(family, socket.SOCK_STREAM)
            # A port that connections of an earlier job still linger on is free; one that is listened on is not.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((where[0], port, *where[2:]))
                listener.listen(socket.SOMAXCONN)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return listener
    except OSError as error:
        raise HorovodInternalError(
            f"cannot listen on {address}: {error.strerror}; choose an address of this host, with "
            "--network-interface or HVDLITE_ADDRESS"
        ) from None
    which = "any port" if ports is None else f"ports {ports.start}-{ports.stop - 1}"
    raise HorovodInternalError(f"cannot listen on {address}: {which} of it are in use; choose another --port-range")


def _parse(name: str) -> tuple[int, Any]:
    if name.startswith(_UNIX):
        return socket.AF_UNIX, "\0" + name.removeprefix(_UNIX)
    host, colon, port = name.removeprefix(_TCP).rpartition(":")
    if not name.startswith(_TCP) or not colon or not port.isascii() or not port.isdigit():
        raise OSError(errno.EINVAL, f"{name!r} is not the address of a ring")
    return _numeric(host.strip("[]"), int(port))


def _numeric(address: str, port: int) -> tuple[int, Any]:
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]
    return family, where
