"""Faults of the networks and file systems of test hosts. Each is a context manager that undoes itself.

All act inside the hosts' namespaces. A network fault is a rule of nft in a table of its own; dropped packets are like a
pulled cable: neither side's kernel reports them for minutes.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.harness.hosts import Host, Network

_numbers = itertools.count(1)
_LISTEN: Final = """
import signal, socket, sys
held = [socket.create_server(("", port)) for port in range(*map(int, sys.argv[1:]))]
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def rule(host: Host, hook: str, *rules: str, priority: int = -300) -> Iterator[str]:
    """``rules`` in a chain of its own at one ``hook`` of ``host``; yields the name of the table."""
    table = f"fault{next(_numbers)}"
    chain = f"type filter hook {hook} priority {priority};"
    host.nft(f"table inet {table} {{\nchain {hook} {{\n{chain}\n" + "\n".join(rules) + "\n}\n}\n")
    try:
        yield table
    finally:
        host.nft(f"delete table inet {table}\n")


# Ranges, because nft merges two adjacent ``!=`` into one wrong comparison.
_BESIDES_SSH: Final = "tcp sport 1024-65535 tcp dport 1024-65535"
BESIDES_SSH: Final = (_BESIDES_SSH,)


def on_port(port: int) -> tuple[str, ...]:
    """The traffic of a TCP port, in both directions, for `drop` and `cut`."""
    return (f"tcp sport {port}", f"tcp dport {port}")


def drop(at: Host, source: Host, which: Sequence[str] = ("",)) -> AbstractContextManager[str]:
    """Drops ``which`` packets from ``source`` to ``at``, by default all, but none the other way."""
    return rule(at, "prerouting", *(f"ip saddr {text} {match} drop" for text in source.addresses for match in which))


@contextmanager
def cut(one: Host, other: Host, which: Sequence[str] = ("",)) -> Iterator[None]:
    """Drops all packets between two hosts, in both directions."""
    with drop(one, other, which), drop(other, one, which):
        yield


@contextmanager
def partition(network: Network, *sides: str, which: Sequence[str] = ("",)) -> Iterator[None]:
    """Splits hosts into ``sides``, such as ``"ab", "c"``, that cannot reach each other."""
    with ExitStack() as faults:
        for one, other in itertools.combinations(sides, 2):
            for first, second in itertools.product(one, other):
                faults.enter_context(cut(network[first], network[second], which))
        yield


def lose(at: Host, percent: int) -> AbstractContextManager[str]:
    """Loses ``percent`` of the packets that arrive at ``at``."""
    return rule(at, "prerouting", f'iif != "lo" numgen random mod 100 < {percent} drop')


def corrupt(at: Host, source: Host, every: int = 100) -> AbstractContextManager[str]:
    """Changes a byte of each ``every``-th long segment from ``source`` except ssh's; TCP at ``at`` does not notice.

    The byte is the 100th of the transport header and payload. Where the rule acts, the checksum is no longer checked,
    and virtual links do not compute it.
    """
    which = f"ip saddr {source.address} {_BESIDES_SSH} meta length > 200"
    return rule(at, "prerouting", f"{which} numgen inc mod {every} 0 @th,800,8 set 0x5a counter")


def reset(at: Host, ports: str) -> AbstractContextManager[str]:
    """Answers every TCP segment to ``ports`` of ``at`` with a reset."""
    return rule(at, "input", f"tcp dport {ports} reject with tcp reset", priority=0)


@contextmanager
def link_down(host: Host, nic: int = 0) -> Iterator[None]:
    """Takes an interface of ``host`` down, without routes until it is up again."""
    host.check("ip", "link", "set", f"eth{nic}", "down")
    try:
        yield
    finally:
        host.check("ip", "link", "set", f"eth{nic}", "up")


@contextmanager
def unplugged(network: Network, name: str, nic: int = 0) -> Iterator[None]:
    """Pulls the cable of a host: its interface stays up but has no carrier."""
    network.set_port(name, "down", nic)
    try:
        yield
    finally:
        network.set_port(name, "up", nic)


def kill_sockets(host: Host, condition: str) -> int:
    """Destroys the TCP connections of ``host`` that match a filter of ss, such as ``dport = 5000``; returns how many.

    Both ends get an error at once.
    """
    return len(host.check("ss", "-HKtn", "state", "established", condition).splitlines())


@contextmanager
def occupy(host: Host, ports: range) -> Iterator[None]:
    """Listens on ``ports`` of ``host``, so that no other process can."""
    with host.popen(sys.executable, "-I", "-S", "-c", _LISTEN, str(ports.start), str(ports.stop)) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"ports {ports} of host {host.name} could not be occupied, see above")
        yield


@contextmanager
def cover(host: Host, path: Path, text: str) -> Iterator[None]:
    """Replaces the text of a file, on ``host`` only."""
    with tempfile.NamedTemporaryFile("w", prefix="cover-") as other:
        other.write(text)
        other.flush()
        Path(other.name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o600)
        with _mounted(host, path, "--bind", other.name):
            yield


def hide(host: Host, folder: Path) -> AbstractContextManager[None]:
    """Replaces ``folder`` by an empty one, on ``host`` only."""
    return _mounted(host, folder, "-t", "tmpfs", "hidden")


def small_disk(host: Host, folder: Path, size: str = "1m") -> AbstractContextManager[None]:
    """Replaces ``folder``, such as /dev/shm, by an empty file system of ``size``, on ``host`` only."""
    return _mounted(host, folder, "-t", "tmpfs", "-o", f"size={size}", "small")


@contextmanager
def _mounted(host: Host, path: Path, *arguments: str) -> Iterator[None]:
    host.check("mount", *arguments, str(path))
    try:
        yield
    finally:
        host.check("umount", "--lazy", str(path))
