"""The network interfaces of this host, as an agent reports them to hvdrun.

psutil sees this process's network namespace; ``/sys/class/net`` may be that of another. It does not report drivers, so
these come from an ioctl. A *network* is one view of the interfaces: two agents that name the same network (one boot of
one machine, one network namespace) are the same host under two names.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_VIRTUAL_DRIVERS: Final = frozenset("bridge geneve openvswitch tun vxlan wireguard".split())  # detours on the same wire
_IP: Final = (socket.AF_INET, socket.AF_INET6)
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GDRVINFO: Final = 0x3


def describe_network() -> dict[str, Any]:
    """``{"network": id, "interfaces": [...]}``; each interface has ``name``, ``addresses`` as ``"10.0.0.1/24"``, and
    ``is_up``, ``is_loopback``, ``is_virtual``, ``mtu`` (bytes) and ``speed_mbps`` (0: unknown)."""
    import psutil

    interfaces, addresses = [], psutil.net_if_addrs()
    for name, stats in psutil.net_if_stats().items():
        flags = stats.flags.split(",")
        interfaces.append(
            {
                "name": name,
                "addresses": [
                    _with_prefix(each.address, each.netmask)
                    for each in addresses.get(name, ())
                    if each.family in _IP and each.netmask
                ],
                "is_up": stats.isup,
                "is_loopback": "loopback" in flags,
                "is_virtual": "pointopoint" in flags or _driver(name) in _VIRTUAL_DRIVERS,
                "mtu": stats.mtu,
                "speed_mbps": stats.speed,
            }
        )
    return {"network": _network_id(), "interfaces": interfaces}


def _with_prefix(address: str, netmask: str) -> str:
    """``"10.0.0.1/24"``, without the interface of an address of IPv6 that is valid on a single link."""
    prefix = int(ipaddress.ip_address(netmask)).bit_count()
    return f"{address.partition('%')[0]}/{prefix}"


def _driver(name: str) -> str:
    """The driver of an interface, laid out as in linux/ethtool.h; empty if it has none."""
    answer = ctypes.create_string_buffer(struct.pack("I", _ETHTOOL_GDRVINFO), 256)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control, suppress(OSError):
        fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), ctypes.addressof(answer)))
    return answer.raw[4:36].rstrip(b"\0").decode(errors="replace")


def _network_id() -> str:
    namespace = os.stat("/proc/self/ns/net").st_ino
    return f"{_BOOT_ID.read_text().strip()}/{namespace}"
