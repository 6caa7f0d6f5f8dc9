"""A network namespace for one test, whose processes have a loopback of their own that the test may break.

A namespace belongs to a thread and the threads and processes that it starts, and ends with the last of them.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec

import pytest

Parameters = ParamSpec("Parameters")

_CLONE_NEWNET = 0x40000000
_TOOLS = ("ip", "nft", "ss")


def in_private_network(test: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Runs ``test`` in a namespace; skips it where that is impossible."""

    @functools.wraps(test)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            pytest.skip(f"needs {', '.join(missing)} (iproute2 and nftables)")
        with ThreadPoolExecutor(1) as thread:
            if thread.submit(_unshare).result() != 0:
                pytest.skip("needs the right to make a network namespace")
            thread.submit(test, *arguments, **options).result()

    return run


@contextmanager
def kept_port() -> Iterator[int]:
    """A port of 127.0.0.1 without a listener, which no connection of another test gets meanwhile.

    Sockets with SO_REUSEADDR, such as hvdlite's, may listen on it.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def namespace() -> int:
    """A descriptor of the namespace that this thread is in."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(descriptor: int) -> None:
    """Moves this thread into the namespace of ``descriptor``; without the privilege, only if it is there already."""
    if not os.path.samestat(os.fstat(descriptor), os.stat("/proc/thread-self/ns/net")):
        library = ctypes.CDLL(None, use_errno=True)
        if library.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def drop(*matches: str) -> None:
    """Drops the packets that match one of ``matches``, as nft writes them, until `drop_none`."""
    drop_none()
    rules = "\n".join(f"{match} drop" for match in matches)
    text = f"table inet cut {{ chain input {{ type filter hook input priority 0;\n{rules}\n}}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def drop_none() -> None:
    """Lets all packets pass."""
    subprocess.run(["nft", "flush", "ruleset"], check=True)


def reset(match: str) -> int:
    """Resets the connections that match, as ss writes it; returns how many sockets that were."""
    killed = subprocess.run(["ss", "-HK", "state", "connected", match], capture_output=True, text=True)
    return len(killed.stdout.splitlines())


def ports_of_connections(port: int) -> list[int]:
    """The ports of the peers connected to ``port``."""
    match = ["state", "established", f"dport = :{port}"]
    lines = subprocess.run(["ss", "-Htn", *match], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[2].rpartition(":")[2]) for line in lines]


def _unshare() -> int:
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(_CLONE_NEWNET) != 0:
        return -1
    return subprocess.run(["ip", "link", "set", "lo", "up"], check=False).returncode
