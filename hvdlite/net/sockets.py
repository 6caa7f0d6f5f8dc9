"""Stream sockets within a host and across hosts: listening, dialling, and their options.

Within a host these are abstract Unix sockets, which leave no file; across hosts TCP on one IP address.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
from contextlib import suppress
from typing import Any, Final

from hvdlite.net import listening
from hvdlite.net.listener import UNIX, Listener

_KEEPALIVE_S: Final = 30  # firewalls forget after some minutes
_MOST_UNSENT_BYTES: Final = 256 << 10  # fits into a second-level cache
_SHORT_LINE_US: Final = 1000  # between hosts of one network
_MIN_RTT: Final = struct.Struct("148x I")  # where a tcp_info has the shortest round trip, in microseconds


def listen(address: str | None, ports: range | None) -> Listener:
    """Listens on the IP address ``address`` at one of ``ports`` (None: any that is free).

    ``address`` None: at a random name within this host. Raises HorovodInternalError with advice.
    """
    if address is not None:
        return listening.listen(address, ports)
    return Listener.within_host(f"hvdlite-ring-{secrets.token_hex(16)}")


def name_of(listener: Listener) -> str:
    """The name by which `dial` reaches ``listener``."""
    where = listener.name()
    return f"{UNIX}{where}" if isinstance(where, str) else listening.endpoint(*where)


def dial(name: str) -> socket.socket:
    """A non-blocking socket that is connecting to ``name``. Raises OSError."""
    family, where = parse(name)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    prepare(sock)
    result = sock.connect_ex(where)
    if result not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(result, os.strerror(result))
    return sock


def prepare(sock: socket.socket) -> None:
    """Sets the options of a connection: small frames leave at once, and keep-alive packets prevent firewall time-outs.

    The kernel buffers little unsent data, because megabytes there would leave the caches. Data in flight, of which a
    long line needs much, is not limited.
    """
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)


def leave_bbr(sock: socket.socket) -> None:
    """Switches a new connection on a short line from BBR to Reno, if BBR is the system's choice.

    BBR paces packets with a timer for each burst, which slows down large all-reduces between hosts whose processors are
    the limit (docs/ring.md). It pays off where a round trip is long, so that a loss is expensive. A system that does
    not permit Reno keeps BBR.
    """
    if sock.family == socket.AF_UNIX:
        return
    with suppress(OSError):
        algorithm = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
        if algorithm.startswith(b"bbr") and len(info) == _MIN_RTT.size and _MIN_RTT.unpack(info)[0] < _SHORT_LINE_US:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def parse(name: str) -> tuple[int, Any]:
    """The address family and the socket address of a `name_of`. Raises OSError for other texts."""
    if name.startswith(UNIX):
        return socket.AF_UNIX, "\0" + name.removeprefix(UNIX)
    try:
        return listening.resolve(*listening.split(name))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None
