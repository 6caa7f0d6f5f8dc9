"""A slow and lossy line between two test hosts, where the kernel has no netem.

This program sits between two TUN devices: packets from one host to the other's usual address are routed into its
device, read here, and written to the other device after the delay, once, twice or never. The round trip is twice the
delay plus 0.1 ms, the bandwidth about 90 MB/s.

    with bad_line(a, b, delay_ms=10, jitter_ms=2, loss=0.05, duplication=0.01): ...
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.harness.hosts import Host

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001
_DEVICE = "line0"
_BURST = 64  # packets read from one device before the other's turn


@contextmanager
def bad_line(
    one: Host,
    other: Host,
    *,
    delay_ms: float = 0.0,
    jitter_ms: float = 0.0,
    loss: float = 0.0,
    duplication: float = 0.0,
) -> Iterator[None]:
    """Replaces the line between two hosts; ``loss`` and ``duplication`` are shares of the packets."""
    numbers = map(str, (delay_ms, jitter_ms, loss, duplication))
    command = [sys.executable, "-I", "-S", __file__, str(one.pid), str(other.pid), *numbers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shim:
        assert shim.stdin is not None
        assert shim.stdout is not None
        try:
            if shim.stdout.readline() != b"ready\n":
                raise RuntimeError("the bad line could not be made, see above")
            for host, peer in ((one, other), (other, one)):
                host.check("ip", "link", "set", _DEVICE, "up")
                host.check("ip", "route", "add", f"{peer.address}/32", "dev", _DEVICE, "src", host.address)
            yield
        finally:
            shim.stdin.close()
            shim.wait(5.0)


def main(pids: list[str], delay_ms: float, jitter_ms: float, loss: float, duplication: float) -> None:
    """Carries packets between devices in the network namespaces of two processes until stdin ends."""
    devices = [_open_device(pid) for pid in pids]
    peers = dict(zip(devices, reversed(devices), strict=True))
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, device, packet = heapq.heappop(waiting)
            with suppress(OSError):  # the device is down, or its queue full: lost
                os.write(device, packet)
        ready, _, _ = select.select([*devices, 0], [], [], waiting[0][0] - now if waiting else None)
        if 0 in ready:
            return
        for device in ready:
            for packet in _read(device):
                if random.random() < loss:
                    continue
                for _ in range(2 if random.random() < duplication else 1):
                    number += 1
                    due = time.monotonic() + (delay_ms + random.random() * jitter_ms) / 1e3
                    heapq.heappush(waiting, (due, number, peers[device], packet))


def _read(device: int) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        for _ in range(_BURST):
            yield os.read(device, 1 << 16)


def _open_device(pid: str) -> int:
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN_WITHOUT_HEADER))
    return device


if __name__ == "__main__":
    main(sys.argv[1:3], *map(float, sys.argv[3:]))
