"""The rendezvous of ranks on several hosts that hvdrun did not start: rank 0 serves it, at an address all can derive.

The host of rank 0 comes from the engine or the user, the port from the user or else from the name of the job. Callers
must have the key that the user gave to all ranks. The job's own key is derived from it, the job's name and the number
of the init, so the server also refuses ranks of another job or an earlier init.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from hvdlite.errors import HorovodInternalError
from hvdlite.net.listener import Listener
from hvdlite.net.listening import listen_at
from hvdlite.rendezvous.client import GRACE_S, Meeting
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.settings import Start

_PORTS: Final = range(61440, 65536)  # above the ports that Linux assigns to outgoing connections
_COORDINATOR: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
)


class Coordinator(NamedTuple):
    """The address of rank 0. ``ip`` is what ``host`` resolves to on this rank."""

    host: str
    ip: str
    port: int

    @property
    def address(self) -> str:
        """The address to which ranks connect."""
        return f"tcp://{_bracketed(self.ip)}:{self.port}"

    @property
    def listening(self) -> tuple[str, int]:
        """The IP address and the port where rank 0 listens.

        If the host's name resolves to a loopback address there, which others cannot reach, rank 0 listens on all.
        """
        ip = ipaddress.ip_address(self.ip)
        if ip.is_loopback and self.host not in ("localhost", self.ip):
            return "0.0.0.0" if ip.version == 4 else "::", self.port
        return self.ip, self.port

    def listen(self) -> Listener:
        """Listens there. Raises HorovodInternalError if it cannot."""
        try:
            return listen_at(*self.listening)
        except OSError as error:
            raise HorovodInternalError(_refusal(self, error)) from None


def locate(text: str, job: str) -> Coordinator:
    """Parses HOST, HOST:PORT or [IPV6]:PORT into the coordinator.

    Without a port, one is derived from the name of the ``job``. Raises ValueError for any other text, and
    HorovodInternalError for an unknown host.
    """
    match = _COORDINATOR.fullmatch(text)
    if match is None or not 0 <= int(match["port"] or 0) < 65536:
        raise ValueError(f"HVDLITE_COORDINATOR={text!r} must be HOST, HOST:PORT or [IPV6]:PORT")
    host = match["ipv6"] or match["host"]
    digest = hashlib.blake2b(job.encode(), digest_size=8).digest()
    port = int(match["port"] or 0) or _PORTS[int.from_bytes(digest, "little") % len(_PORTS)]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise HorovodInternalError(
            f"the host {host!r} of rank 0 cannot be found ({error.strerror}); set HVDLITE_COORDINATOR to a name or an "
            "IP address that all hosts know"
        ) from None
    first = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return Coordinator(host, str(first[4][0]), port)


def own_address(rank: int, host_ids: Sequence[str], reaches: Sequence[str]) -> str:
    """The IP address of this rank's host on the network on which the ranks met; empty if there was none.

    ``reaches`` has rank 0's address as each rank resolves it. On rank 0's host the result is the address that other
    hosts resolve, since the host's name may be a loopback address there; elsewhere it is the source address of the
    route to rank 0.
    """
    if not reaches[rank]:
        return ""
    if host_ids[rank] != host_ids[0]:
        return _source_address(reaches[rank])
    return next((reach for reach, host_id in zip(reaches, host_ids, strict=True) if host_id != host_ids[0]), "")


def _source_address(destination: str) -> str:
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a UDP socket sends nothing
        probe.connect((destination, 9))
        return str(probe.getsockname()[0])


def appointment(start: Start, number: int) -> tuple[Coordinator, Job]:
    """The place where the ranks of ``start`` meet in their ``number``-th init, and the job that they form.

    Raises what `locate` does, and ValueError for a missing or bad key.
    """
    if not start.secret:
        raise ValueError(
            "HVDLITE_COORDINATOR needs HVDLITE_SECRET beside it, the same on all ranks: a key that keeps strangers "
            "out, from 'openssl rand -hex 32'"
        )
    name = start.job or start.coordinator
    where = locate(start.coordinator, name)
    label = f"meeting {number} of {name}"
    return where, Job(
        hashlib.blake2b(label.encode(), digest_size=8).hexdigest(), Job(name, start.secret).key(label).hex()
    )


@contextmanager
def meet_across_hosts(start: Start, number: int) -> Iterator[Meeting]:
    """The meeting of the ``number``-th init, served by rank 0. Raises what `appointment` and `listen` do."""
    where, job = appointment(start, number)
    meeting = Meeting(job, where.address, _silence(where), where.ip)
    if start.rank > 0:
        yield meeting
        return
    with RendezvousServer(job, start.size, where.listen(), only=number, linger_s=GRACE_S):
        yield meeting


def _silence(where: Coordinator) -> str:
    return (
        f"rank 0 is expected on {where.host}. Either it is elsewhere, or it did not call init(), or it has another "
        f"HVDLITE_SECRET, or a firewall blocks the port {where.port}. HVDLITE_COORDINATOR=HOST:PORT says where it is."
    )


def _refusal(where: Coordinator, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"rank 0 cannot listen: the port {where.port} of {where.host} is in use. Set HVDLITE_COORDINATOR="
            f"{_bracketed(where.host)}:PORT with a free one for all ranks."
        )
    return (
        f"rank 0 runs on {socket.gethostname()}, which cannot listen at {where.ip}, the address given for it "
        f"({os.strerror(error.errno or 0)}). Set HVDLITE_COORDINATOR={socket.gethostname()}:{where.port} for all ranks."
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
