"""hvdrun in front of a person: colour, progress bars, and readers that are slow or leave."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import COMMAND, python, read_until, run, started

BAR = """
import os, sys
for step in range(3): os.write(2, b"\\r%d0%%" % step)
os.write(1, b"plain line\\n")
sys.stdin = open("{fifo}"); sys.stdin.readline()
os.write(2, b"\\r100%\\n")
"""


@contextmanager
def on_terminal(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """hvdrun with a terminal of its own as stdin, stdout and stderr, and the other end of that terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environment},
        preexec_fn=partial(os.login_tty, theirs),  # so that Ctrl-C there is a signal
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def test_a_terminal_has_colours() -> None:
    with on_terminal("-np", "1", "echo", "x") as (process, terminal):
        shown = read_until(terminal, lambda found: b"x\r\n" in found)
        assert process.wait(PATIENCE_S) == 0
    assert re.fullmatch(rb"\x1b\[\d+m\[0\]<stdout>:\x1b\[0mx\r\n", shown)


def test_no_color_is_respected() -> None:
    with on_terminal("-np", "1", "echo", "x", NO_COLOR="1") as (process, terminal):
        assert read_until(terminal, lambda found: b"x\r\n" in found) == b"[0]<stdout>:x\r\n"
        assert process.wait(PATIENCE_S) == 0


def test_a_progress_bar_stays_below_ordinary_lines(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = python(BAR.format(fifo=fifo))
    with on_terminal("-np", "1", *command, NO_COLOR="1") as (process, terminal):
        bar = b"[0]<stderr>:20%"
        shown = read_until(terminal, lambda found: b"plain line" in found and found.endswith(bar))
        assert shown.endswith(b"[0]<stdout>:plain line\r\n" + bar)
        fifo.write_text("\n")
        rest = read_until(terminal, lambda found: found.endswith(b"\n"))
        assert rest.endswith(b"\r\x1b[K[0]<stderr>:100%\r\n")
        assert process.wait(PATIENCE_S) == 0


def test_ctrl_c_on_the_terminal_ends_the_job() -> None:
    with on_terminal("-np", "2", "sh", "-c", "echo ready; exec sleep 600", NO_COLOR="1") as (process, terminal):
        read_until(terminal, lambda found: found.count(b"ready") == 2)
        os.write(terminal, b"\x03")
        shown = read_until(terminal, lambda found: b"SIGINT" in found and found.endswith(b"\n"))
        assert process.wait(PATIENCE_S) == 130
        assert b"Traceback" not in shown


def test_a_reader_that_leaves_does_not_end_the_job() -> None:
    program = "import os\nfor i in range(3000): os.write(1, b'line\\n')\nos.write(2, b'finished\\n')"
    with started("-np", "1", *python(program)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 0
    assert "[0]<stderr>:finished\n" in said
    assert said.count("stdout cannot be written: Broken pipe; the ranks go on without it") == 1
    assert re.search(r"hvdrun: \d+ bytes for stdout were dropped: Broken pipe", said)


def test_a_reader_that_does_not_read_does_not_hold_up_the_job() -> None:
    program = "import os\nfor i in range(64): os.write(1, b'x' * 16383 + b'\\n')\nos.write(2, b'finished\\n')"
    with started("-np", "1", *python(program)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stderr.fileno(), lambda found: b"finished" in found)
        assert len(process.stdout.read()) == 64 * (16384 + len("[0]<stdout>:"))
        assert process.wait(PATIENCE_S) == 0


def test_both_outputs_in_one_pipe_keep_lines_whole() -> None:
    program = "import os\nfor i in range(300): os.write(1, b'o' * 999 + b'\\n'); os.write(2, b'e' * 999 + b'\\n')"
    ended = subprocess.run(
        [*COMMAND, "-np", "2", *python(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S
    )
    assert set(ended.stdout.splitlines()) == {
        b"[%d]<%s>:%s" % (rank, stream, letter * 999)
        for rank in (0, 1)
        for stream, letter in ((b"stdout", b"o"), (b"stderr", b"e"))
    }


def test_four_ranks_of_nothing_start_and_end() -> None:
    ended = run("-np", "4", "true")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
