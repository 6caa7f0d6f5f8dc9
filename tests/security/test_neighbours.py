"""Another user of the same machine, who looks at a job and attacks it."""

from __future__ import annotations

import glob
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import psutil

from tests.harness.users import NOBODY, in_child, needs_root
from tests.launcher.hvdrun import python, read_until, started
from tests.security.openings import openings
from tests.security.victim import victim

pytestmark = needs_root

OF_PROCESSES = [f"/proc/[0-9]*/{name}" for name in ("cmdline", "environ", "maps", "mem", "fd/*", "status", "comm")]
FOLDERS = ("/dev/shm", "/tmp", "/run")


def candidates(since: float, folders: Iterable[str]) -> Iterator[str]:
    """Yields the files that a snooping user would read: of other processes, and those changed ``since`` then."""
    for pattern in OF_PROCESSES:
        yield from (path for path in glob.iglob(pattern) if not path.startswith(f"/proc/{os.getpid()}/"))
    for path in (path for folder in folders for path in files_below(folder, since)):
        if os.path.isfile(path) and changed_since(since, path):
            yield path


def files_below(folder: str, since: float) -> Iterator[str]:
    """Yields the files of ``folder`` and below, except in folders right there in which nothing came or went ``since``.

    Those are other people's, and may hold millions of files.
    """
    for parent, below, names in os.walk(folder):
        if parent == folder:
            below[:] = [name for name in below if changed_since(since, os.path.join(parent, name))]
        yield from (os.path.join(parent, name) for name in names)


def changed_since(since: float, path: str) -> bool:
    with suppress(OSError):
        return os.stat(path).st_mtime >= since - 1.0
    return False


def holders(keys: list[bytes], since: float, *folders: Path) -> list[set[str]]:
    """The files that hold each of ``keys``, of the `candidates`."""
    found: list[set[str]] = [set() for _ in keys]
    for path in candidates(since, (*FOLDERS, *map(str, folders))):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                text = os.read(descriptor, 1 << 20)
                for key, paths in zip(keys, found, strict=True):
                    if key in text:
                        paths.add(path)
            finally:
                os.close(descriptor)
    return found


def test_the_key_of_a_job_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    """Another key is, in a file and in an argument, where the same search finds it."""
    tmp_path.chmod(0o755)
    logs, begun = tmp_path / "logs", time.time()
    program = "import os, signal, sys; print(os.getpid()); print('warm', file=sys.stderr); signal.pause()"
    seen = b"0123456789abcdef" * 4
    with (
        started("-np", "2", "--verbose", "--output-filename", str(logs), *python(program)) as hvdrun,
        tempfile.NamedTemporaryFile(dir="/tmp") as file,
        subprocess.Popen([sys.executable, "-S", "-c", "input()", seen.decode()], stdin=subprocess.PIPE) as careless,
    ):
        os.chmod(file.name, 0o644)
        file.write(seen)
        file.flush()
        assert hvdrun.stdout is not None
        assert hvdrun.stderr is not None
        output = read_until(hvdrun.stdout.fileno(), lambda text: text.count(b"<stdout>") == 2)
        rank = psutil.Process(int(output.rpartition(b":")[2]))
        key = rank.environ()["HVDLITE_SECRET"].encode()
        found, found_of_other = in_child(holders, [key, seen], begun, logs, uid=NOBODY)
        careless.kill()
        hvdrun.terminate()
        told, complained = hvdrun.communicate()
    assert found == set()
    assert {f"/proc/{careless.pid}/cmdline", file.name} <= found_of_other
    assert key not in output + told + complained
    assert not [path for path in logs.rglob("*") if path.is_file() and key in path.read_bytes()]


def call(addresses: list[str], payloads: dict[str, bytes]) -> list[str]:
    """Sends each payload to each abstract address and returns the names of those for which something came back."""
    answered = []
    for address, (name, payload) in product(addresses, payloads.items()):
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as caller, suppress(OSError):
                caller.settimeout(0.3)
                caller.connect("\0" + address)
                caller.sendall(payload[:2048])
                if caller.recv(4096):
                    answered.append(name)
    return answered


def test_the_unix_sockets_of_a_job_tell_other_users_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    with victim() as job:
        addresses = job.unix_listeners()
        assert in_child(call, addresses, openings(canary), uid=NOBODY) == []
        job.end()
    assert not canary.exists()


def test_ranks_listen_where_they_were_told_and_nowhere_else() -> None:
    with victim(HVDLITE_ADDRESS="127.0.0.3") as job:
        listeners = job.tcp_listeners()
        job.end()
    assert {address for address, _ in listeners} == {"127.0.0.3"}


def test_ranks_of_one_host_listen_on_no_port() -> None:
    with started("-np", "2", *(sys.executable, "-c", LISTEN)) as hvdrun:
        assert hvdrun.stdout is not None
        output = read_until(hvdrun.stdout.fileno(), lambda text: text.count(b"pid") == 2)
        pids = [int(line.split()[-1]) for line in output.splitlines()]
        family = {process.pid for pid in (*pids, hvdrun.pid) for process in _family(pid)}
        listening = [
            connection
            for pid in family
            for connection in psutil.Process(pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        hvdrun.terminate()
        hvdrun.communicate()
    assert len(family) >= 4
    assert listening == []


LISTEN = "import hvdlite as hvd, os, signal; hvd.init(); hvd.barrier(); print('pid', os.getpid()); signal.pause()"


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]
