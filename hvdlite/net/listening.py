"""TCP addresses across hosts: where a rank listens, and how the others write it down."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Any

from hvdlite.errors import HorovodInternalError
from hvdlite.net.listener import Listener

LOOPBACK = "127.0.0.1"


def listen(address: str, ports: range | None) -> Listener:
    """Listens on the IP address ``address`` at the first of ``ports`` that is free, None for any.

    Raises HorovodInternalError, with advice, if none is free.
    """
    candidates: Iterable[int] = (0,) if ports is None else ports
    for port in candidates:
        try:
            return listen_at(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise HorovodInternalError(
                    f"cannot listen on {address} port {port or 'any'}: {error.strerror}. Choose an address of this "
                    "host with HVDLITE_ADDRESS (hvdrun: --network-interface), or other ports with HVDLITE_PORT_RANGE"
                ) from None
    tried = "any port" if ports is None else f"ports {ports[0]}-{ports[-1]}"
    raise HorovodInternalError(f"cannot listen on {address}: {tried} are all in use; choose a wider HVDLITE_PORT_RANGE")


def listen_at(address: str, port: int) -> Listener:
    """Listens on the IP address ``address`` at ``port``. Raises OSError."""
    family, where = resolve(address, port)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # With it a port with lingering connections of an earlier job is free, and one with a listener is not.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # :: also accepts IPv4, whatever the system's default (bindv6only)
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(where)
    except BaseException:
        bound.close()
        raise
    return Listener(bound)


def endpoint(address: str, port: int | str) -> str:
    """The address as ZeroMQ writes it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def split(written: str) -> tuple[str, int]:
    """The IP address and the port of an `endpoint`. Raises ValueError for any other text."""
    host, _, port = written.removeprefix("tcp://").rpartition(":")
    if not written.startswith("tcp://") or not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"{written!r:.100} is not an address of the form tcp://host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """The family of an IP address, and the socket address of ``port`` there. Raises OSError for other texts."""
    known = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, _, _, _, where = known[0]
    return family, where
