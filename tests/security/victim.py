"""A job to attack: its ranks reduce all the time, check every sum, and can tell what they listen on."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, reached

SIZE = 4
TWO_HOSTS = {rank: {"HVDLITE_HOSTID": f"host {rank // 2}"} for rank in range(SIZE)}
ELEMENTS = 1 << 16
WARM_STEPS = 100  # after them memory grows no more
REST_S = 0.02  # between two steps after those: four ranks without a pause take the cores from all other tests
MARK = 1234.5  # every element of what rank 0 contributes; 2**16 of them are hard to overlook in a capture


def reduce_until_released() -> dict[str, float]:
    """Reduces until the test releases all ranks; what `Report` has."""
    hvd.init()
    has_been_released = threading.Event()

    def wait_for_release() -> None:
        pause_at("waiting")
        has_been_released.set()

    tensor = np.empty(ELEMENTS, np.float32)
    steps = wrong = base = 0
    longest_s, began = 0.0, time.monotonic()
    process = psutil.Process()
    while hvd.allreduce(np.array([has_been_released.is_set()], np.int32), name="stop", op=hvd.Sum)[0] < hvd.size():
        tensor.fill(MARK + hvd.rank())
        hvd.allreduce_(tensor, name="data", op=hvd.Sum)
        wrong += not (tensor == MARK * hvd.size() + sum(range(hvd.size()))).all()
        steps += 1
        longest_s, began = max(longest_s, time.monotonic() - began), time.monotonic()
        if steps == WARM_STEPS:
            base = process.memory_info().rss
            threading.Thread(target=wait_for_release, daemon=True).start()
            reached("running")
        if steps >= WARM_STEPS:
            has_been_released.wait(REST_S)
    return {"steps": steps, "wrong": wrong, "grown": process.memory_info().rss - base, "longest_s": longest_s}


class Report(NamedTuple):
    """One rank's last line: steps, wrong sums, bytes that memory grew since `WARM_STEPS`, the longest step."""

    steps: int
    wrong: int
    grown: int
    longest_s: float


class Victim:
    """A running job; `end` stops it and has it checked."""

    def __init__(self, ranks: ProcessRanks) -> None:
        self.ranks = ranks
        self.pids = [ranks.pid(rank) for rank in range(SIZE)]

    def tcp_listeners(self) -> list[tuple[str, int]]:
        """Address and port of everything that any rank listens on."""
        return sorted({(c.laddr.ip, c.laddr.port) for c in self._connections() if c.status == psutil.CONN_LISTEN})

    def unix_listeners(self) -> list[str]:
        """The abstract addresses, without the zero byte, on which any rank listens."""
        inodes = {os.readlink(link) for pid in self.pids for link in Path(f"/proc/{pid}/fd").iterdir()}
        rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        named = [row for row in rows if len(row) > 7 and row[7][0] == "@" and f"socket:[{row[6]}]" in inodes]
        return [row[7][1:].rstrip("@") for row in named]  # the kernel shows zero bytes as @

    def descriptors(self) -> int:
        """The number of descriptors that the ranks have open."""
        return sum(psutil.Process(pid).num_fds() for pid in self.pids)

    def secret(self) -> str:
        """The key of the job, 64 hexadecimal digits."""
        return self.ranks.job.secret

    def end(self) -> list[Report]:
        """Ends the job. Raises AssertionError unless every rank ended well and every sum was right."""
        self.ranks.release()
        reports = []
        for outcome in self.ranks.join():
            assert outcome.exit_code == 0, outcome.output
            reports.append(Report(**outcome.value))
        assert [report.wrong for report in reports] == [0] * SIZE
        return reports

    def _connections(self) -> Iterator[Any]:
        for pid in self.pids:
            yield from psutil.Process(pid).net_connections("tcp")


@contextmanager
def victim(**environ: str) -> Iterator[Victim]:
    """A job of four ranks on what counts as two hosts, which talk over TCP."""
    options: dict[str, Any] = {"environ": environ, "environ_by_rank": TWO_HOSTS}
    with ProcessRanks(SIZE, reduce_until_released, **options) as ranks:
        ranks.wait_for("running")
        ranks.wait_for("waiting")
        yield Victim(ranks)


def is_dropped(attack: socket.socket, within_s: float) -> bool:
    """Returns true if the other side ends the connection in time, whatever it sends before."""
    attack.settimeout(within_s)
    try:
        while attack.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
