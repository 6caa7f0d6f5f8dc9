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

    Raises HorovodInternalError that says what to change if the system lets it have none.
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
        # A port that connections of an earlier job still linger on is free; one that is listened on is not. Of two
        # sockets that are bound only one may listen, so the other one is of no use any more.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # :: has callers over IPv4 too, whatever the system's default (bindv6only)
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
    """The IP address and the port of `endpoint`. Raises ValueError if it is none."""
    host, _, port = written.removeprefix("tcp://").rpartition(":")
    if not written.startswith("tcp://") or not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"{written!r:.100} is not an address of the form tcp://host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """The family of an IP address, and what the system's sockets call the port there. Raises OSError if it is none."""
    known = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, _, _, _, where = known[0]
    return family, where
