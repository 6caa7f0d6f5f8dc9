"""stdin reaches a rank of another host through ssh, and only as fast as that rank reads."""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from pathlib import Path

from tests.harness.hosts import Network
from tests.harness.patience import PATIENCE_S
from tests.hosts.endings import still_on
from tests.launcher.hvdrun import COMMAND, python, read_until

HASH = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"


def test_every_byte_reaches_the_rank_that_reads_it(network: Network, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    job = shlex.join([*COMMAND, "-H", "a:1,b:1", "--stdin", "all", *python(HASH)])
    digest = hashlib.sha256(data).hexdigest()
    for line in (f"{job} < {tmp_path}/data", f"cat {tmp_path}/data | {job}"):
        ended = network["a"].run("sh", "-c", line)
        assert sorted(ended.stdout.splitlines()) == [f"[0]<stdout>:{digest}", f"[1]<stdout>:{digest}"], ended.stderr


def test_a_rank_that_never_reads_holds_it_up(network: Network, tmp_path: Path) -> None:
    door = tmp_path / "door"
    os.mkfifo(door)
    job = shlex.join([*COMMAND, "-H", "b:1", "sh", "-c", f"echo ready; read word < {door}"])
    with network["a"].popen("sh", "-c", f"yes | {job}") as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: b"ready" in found)
        (source,) = network["a"].processes("yes", besides="hvdlite")
        deadline, before = time.monotonic() + PATIENCE_S, -1
        while (now := source.io_counters().write_chars) != before:
            assert time.monotonic() < deadline
            before = now
            time.sleep(0.5)
        assert now <= (64 << 10) + (64 << 10) + (16 << 10)  # what is ahead, the pipe of yes, and its last write
        door.write_text("go\n")
        assert process.wait(PATIENCE_S) == 0
    assert still_on(network) == []
