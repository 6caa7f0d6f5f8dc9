"""TCP addresses across hosts: where a rank listens, and how the others write it down."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from hvdlite.errors import HorovodInternalError

LOOPBACK = "127.0.0.1"


def bind_within(bind: Callable[[int], object], address: str, ports: range | None) -> None:
    """Calls ``bind`` with a port of ``ports`` that is free, or with 0 for any.

    Raises HorovodInternalError that says what to change if the system lets it have none.
    """
    candidates: Iterable[int] = (0,) if ports is None else ports
    for port in candidates:
        try:
            bind(port)
            return
        except (OSError, zmq.ZMQError) as error:
            if error.errno != errno.EADDRINUSE:
                raise HorovodInternalError(
                    f"cannot listen on {address} port {port or 'any'}: {error}. "
                    "Choose an address of this host with --network-interface, or other ports with --port-range."
                ) from None
    told = "any port" if ports is None else f"ports {ports[0]}-{ports[-1]}"
    raise HorovodInternalError(f"{told} of {address} are all in use; choose a wider --port-range")


def endpoint(address: str, port: int | str) -> str:
    """The address as ZeroMQ writes it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def split(written: str) -> tuple[str, int]:
    """The IP address and the port of `endpoint`. Raises ValueError if it is none."""
    host, _, port = written.removeprefix("tcp://").rpartition(":")
    if not written.startswith("tcp://") or not host:
        raise ValueError(f"{written!r:.100} is no address of the form tcp://host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """The family of an IP address, and what the system's sockets call the port there. Raises OSError if it is none."""
    known = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, _, _, _, where = known[0]
    return family, where
