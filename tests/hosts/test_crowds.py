"""Strangers on a host beside those of a job call at all of its ports, while it trains, joins anew and makes a set."""

from __future__ import annotations

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.harness.hosts import Host, Network
from tests.harness.network import enter
from tests.harness.patience import LAST_RESORTS, NEVER_SILENT, PATIENCE_S
from tests.harness.users import in_child
from tests.hosts.jobs import running
from tests.security.crowd import Listener, call_at

COUNT, OVER_S = 1500, 4.0
LISTENS = "0A"  # the state of a socket that listens, in /proc/net/tcp
LIMITED = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")


def listeners_of(host: Host) -> list[Listener]:
    """Those at the address of ``host`` itself, which are the job's: sshd listens at all addresses."""
    rows = [line.split() for line in Path(f"/proc/{host.pid}/net/tcp").read_text().splitlines()[1:]]
    own = socket.inet_aton(host.address)[::-1].hex().upper()
    where = [row[1].split(":") for row in rows if row[3] == LISTENS]
    ports = [int(port, 16) for address, port in where if address == own]
    return [Listener(socket.AF_INET, socket.SOCK_STREAM, (host.address, port)) for port in ports]


def call_from(stranger: Host, job: list[Host], midway: Path) -> int:
    def find() -> list[Listener]:
        return [listener for host in job for listener in listeners_of(host)]

    enter(os.open(f"/proc/{stranger.pid}/ns/net", os.O_RDONLY))
    return call_at(find, COUNT, OVER_S, stranger.address, midway)


def test_a_crowd_of_another_host_stops_nobody(network: Network, tmp_path: Path) -> None:
    ranks = (*LIMITED, sys.executable, "-m", "tests.security.crowd", str(tmp_path))
    with (
        running(network["a"], "-H", "a:2,b:2", *ranks, ranks=4, **LAST_RESORTS, **NEVER_SILENT) as job,
        ThreadPoolExecutor() as threads,
    ):
        try:
            crowd = threads.submit(in_child, call_from, network["c"], [network["a"], network["b"]], tmp_path / "again")
            made = crowd.result()
        finally:
            (tmp_path / "stop").touch()
        said, complained = (each.decode() for each in job.communicate(timeout=PATIENCE_S))
    assert (job.returncode, said.count("steps"), said.count("again")) == (0, 4, 4), complained
    assert made > COUNT / 4  # while the ranks join anew, there is less to connect to
