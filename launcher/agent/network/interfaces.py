"""The network interfaces of this host, as an agent reports them to hvdrun. Needs only the standard library.

``getifaddrs`` is the one call of libc that knows all addresses of both families. Everything else comes from ioctls,
which see this process's network namespace; ``/sys/class/net`` may be that of another. A *network* is one view
of the interfaces: two agents that name the same network (one boot of one machine, one network namespace) are the same
host under two names.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_IFF_UP: Final = 0x1
_IFF_LOOPBACK: Final = 0x8
_IFF_POINTOPOINT: Final = 0x10
_IFF_RUNNING: Final = 0x40
_VIRTUAL_DRIVERS: Final = frozenset("bridge geneve openvswitch tun vxlan wireguard".split())  # detours on the same wire
_SIOCGIFMTU: Final = 0x8921
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GSET: Final = 0x1
_ETHTOOL_GDRVINFO: Final = 0x3
_UNKNOWN_SPEED: Final = 0xFFFFFFFF
_SOCKADDR_BYTES: Final = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}  # where the address begins, its length


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other_end", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def describe_network() -> dict[str, Any]:
    """``{"network": id, "interfaces": [...]}``; each interface has ``name``, ``addresses`` as ``"10.0.0.1/24"``, and
    ``is_up``, ``is_loopback``, ``is_virtual``, ``mtu`` (bytes) and ``speed_mbps`` (0: unknown)."""
    interfaces: dict[str, dict[str, Any]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, flags, address in _addresses():
            interface = interfaces.get(name) or interfaces.setdefault(name, _interface(control, name, flags))
            if address is not None:
                interface["addresses"].append(address)
    return {"network": _network_id(), "interfaces": list(interfaces.values())}


def _interface(control: socket.socket, name: str, flags: int) -> dict[str, Any]:
    return {
        "name": name,
        "addresses": [],
        "is_up": flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING,
        "is_loopback": bool(flags & _IFF_LOOPBACK),
        "is_virtual": bool(flags & _IFF_POINTOPOINT) or _driver(control, name) in _VIRTUAL_DRIVERS,
        "mtu": _mtu(control, name),
        "speed_mbps": _speed_mbps(control, name),
    }


def _addresses() -> Iterator[tuple[str, int, str | None]]:
    """Yields name, flags and address with prefix, once for each address of each interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.freeifaddrs.argtypes, libc.freeifaddrs.restype = [ctypes.POINTER(_IfAddrs)], None
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "getifaddrs")
    try:
        entry = first
        while entry:
            row = entry.contents
            yield row.name.decode(errors="replace"), row.flags, _with_prefix(row.address, row.netmask)
            entry = row.next
    finally:
        libc.freeifaddrs(first)


def _with_prefix(address: int | None, netmask: int | None) -> str | None:
    """``"10.0.0.1/24"`` for two pointers to ``sockaddr``; None if they do not hold an IP address."""
    if not address or not netmask:
        return None
    (family,) = struct.unpack("=H", ctypes.string_at(address, 2))
    if family not in _SOCKADDR_BYTES:
        return None
    start, length = _SOCKADDR_BYTES[family]
    prefix = int.from_bytes(ctypes.string_at(netmask + start, length), "big").bit_count()
    return f"{socket.inet_ntop(family, ctypes.string_at(address + start, length))}/{prefix}"


def _mtu(control: socket.socket, name: str) -> int:
    request = struct.pack("16si12x", name.encode(), 0)
    with suppress(OSError):
        return int(struct.unpack_from("i", fcntl.ioctl(control, _SIOCGIFMTU, request), 16)[0])
    return 0


def _driver(control: socket.socket, name: str) -> str:
    return _ethtool(control, name, _ETHTOOL_GDRVINFO)[4:36].rstrip(b"\0").decode(errors="replace")


def _speed_mbps(control: socket.socket, name: str) -> int:
    settings = _ethtool(control, name, _ETHTOOL_GSET)
    low, high = struct.unpack_from("H", settings, 12)[0], struct.unpack_from("H", settings, 28)[0]
    speed = int(high << 16 | low)
    return 0 if speed == _UNKNOWN_SPEED else speed


def _ethtool(control: socket.socket, name: str, command: int) -> bytes:
    """The driver's answer, laid out as in linux/ethtool.h; zeros if there is none."""
    answer = ctypes.create_string_buffer(struct.pack("I", command), 256)
    with suppress(OSError):
        fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), ctypes.addressof(answer)))
    return answer.raw


def _network_id() -> str:
    namespace = os.stat("/proc/self/ns/net").st_ino
    return f"{_BOOT_ID.read_text().strip()}/{namespace}"
