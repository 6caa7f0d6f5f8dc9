"""Reads along on the loopback interface, as somebody on the path of a network would."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import NamedTuple

_ETH_P_IP = 0x0800
_SO_RCVBUFFORCE = 33
_PACKET_OUTGOING = 4


class Flow(NamedTuple):
    """One direction of one TCP connection."""

    source: tuple[str, int]
    target: tuple[str, int]


class Capture:
    """The captured bytes of each flow, in the order of their sequence numbers."""

    def __init__(self) -> None:
        self._segments: dict[Flow, dict[int, bytes]] = {}

    def add(self, packet: bytes) -> None:
        """Takes in one IPv4 packet."""
        header_bytes = (packet[0] & 15) * 4
        if packet[9] != socket.IPPROTO_TCP:
            return
        total = struct.unpack_from("!H", packet, 2)[0] or len(packet)  # 0: longer than the field can say
        ports = struct.unpack_from("!HHI", packet, header_bytes)
        payload = packet[header_bytes + (packet[header_bytes + 12] >> 4) * 4 : total]
        if payload:
            source, target = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
            self._segments.setdefault(Flow((source, ports[0]), (target, ports[1])), {})[ports[2]] = payload

    def streams(self) -> dict[Flow, bytes]:
        """The bytes of each flow; what was captured twice counts once, and what was missed is not there."""
        return {flow: b"".join(parts[at] for at in sorted(parts)) for flow, parts in self._segments.items()}

    def keep(self, ports: Container[int]) -> None:
        """Forgets what neither came from nor went to one of ``ports``: other jobs use the interface too."""
        self._segments = {
            flow: parts for flow, parts in self._segments.items() if flow.source[1] in ports or flow.target[1] in ports
        }

    def __contains__(self, pattern: bytes) -> bool:
        return any(pattern in stream for stream in self.streams().values())


@contextmanager
def capture() -> Iterator[Capture]:
    """Captures IPv4 TCP on the loopback interface until the block ends. Needs root."""
    seen = Capture()
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
    tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
    tap.bind(("lo", _ETH_P_IP))
    tap.settimeout(0.1)
    has_ended = threading.Event()

    def listen() -> None:
        while not has_ended.is_set():
            try:
                packet, address = tap.recvfrom(1 << 16)
            except TimeoutError:
                continue
            if address[2] != _PACKET_OUTGOING:  # loopback shows every packet twice
                seen.add(packet)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield seen
    finally:
        has_ended.set()
        thread.join()
        tap.close()
