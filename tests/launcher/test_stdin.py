"""stdin: who reads it, through what, and that nobody is stopped, starved or flooded by it."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import COMMAND, python, read_until
from tests.launcher.test_terminal import on_terminal

TELL = "import os, sys; print(repr(sys.stdin.read()))"
DEBUGGED = """
import os, sys
import hvdlite as hvd, numpy as np
hvd.init()
x = 41
if hvd.rank() == 0:
    breakpoint()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)
    print("sum", total[0] + x)
else:
    hvd.allreduce(np.ones(3), op=hvd.Sum)
"""


def hvdrun(*arguments: str, given: bytes | None = None, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        capture_output=True,
        timeout=PATIENCE_S,
        **options,  # type: ignore[call-overload]
    )


def lines(output: bytes) -> list[str]:
    return sorted(output.decode().splitlines())


@pytest.mark.parametrize(
    ("words", "readers"),
    [((), {0}), (("--stdin", "2"), {2}), (("--stdin", "all"), {0, 1, 2}), (("--stdin", "none"), set())],
)
def test_one_rank_all_or_none_read_it_and_the_others_its_end(words: tuple[str, ...], readers: set[int]) -> None:
    text = "one\ntwo"
    ended = hvdrun("-np", "3", *words, *python(TELL), given=text.encode())
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert lines(ended.stdout) == [f"[{rank}]<stdout>:{text if rank in readers else ''!r}" for rank in range(3)]


@pytest.mark.parametrize("word", ["3", "-1", "some", "0.5"])
def test_a_rank_that_is_none_is_refused(word: str) -> None:
    ended = hvdrun("-np", "3", "--stdin", word, "true", given=b"")
    assert ended.returncode == 2
    assert b"--stdin" in ended.stderr


def test_every_byte_of_a_file_and_of_a_pipe_comes_through_in_order(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(data)
    program = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    with open(tmp_path / "file", "rb") as file:
        of_file = subprocess.run(
            [*COMMAND, "-np", "2", *python(program)], stdin=file, capture_output=True, timeout=PATIENCE_S
        )
    of_pipe = hvdrun("-np", "2", "--stdin", "all", *python(program), given=data)
    (digest,) = {line.split(":")[1] for line in lines(of_pipe.stdout)}
    assert f"[0]<stdout>:{digest}" in lines(of_file.stdout)
    assert digest == subprocess.run(["sha256sum"], input=data, capture_output=True).stdout.decode().split()[0]


@pytest.mark.parametrize("redirection", ["< /dev/null", "<&-", "0> /dev/null"])
def test_what_cannot_be_read_is_at_its_end(redirection: str) -> None:
    command = ["sh", "-c", f'"$@" {redirection}', "sh", *COMMAND, "-np", "1", *python(TELL)]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"[0]<stdout>:''\n", b"")


def test_a_rank_that_never_reads_neither_fills_the_memory_nor_keeps_hvdrun(tmp_path: Path) -> None:
    door = tmp_path / "door"
    os.mkfifo(door)
    source = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    job = subprocess.Popen(
        [*COMMAND, "-np", "1", "sh", "-c", f"echo ready; read word < {door}"],
        stdin=source.stdout,
        stdout=subprocess.PIPE,
    )
    assert source.stdout is not None
    assert job.stdout is not None
    source.stdout.close()
    read_until(job.stdout.fileno(), lambda found: b"ready" in found)
    wait_until_blocked(source.pid)
    written = psutil.Process(source.pid).io_counters().write_chars
    assert written <= (64 << 10) + (64 << 10) + (16 << 10)  # what is ahead, the pipe of yes, and its last write
    door.write_text("go\n")
    assert job.wait(PATIENCE_S) == 0
    assert source.wait(PATIENCE_S) == -signal.SIGPIPE
    job.stdout.close()


def wait_until_blocked(pid: int) -> None:
    """Waits until a process that writes all the time has written nothing for half a second."""
    deadline, before = time.monotonic() + PATIENCE_S, -1
    while (now := psutil.Process(pid).io_counters().write_chars) != before:
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.5)


def test_a_rank_that_closes_it_ends_it_for_itself_only() -> None:
    program = "import os, sys\nif os.environ['RANK'] == '1': os.close(0); print('closed'); sys.exit()\n" + TELL.replace(
        "sys.stdin.read()", "len(sys.stdin.read())"
    )
    ended = hvdrun("-np", "2", "--stdin", "all", *python(program), given=b"x" * (1 << 20))
    assert lines(ended.stdout) == ["[0]<stdout>:1048576", "[1]<stdout>:closed"]


def test_input_asks_and_is_answered() -> None:
    program = "print('hello', input('Name? '))"
    with on_terminal("-np", "2", "--stdin", "1", *python(f"import os\nif os.environ['RANK'] == '1': {program}")) as (
        process,
        terminal,
    ):
        assert read_until(terminal, lambda found: found.endswith(b"Name? ")) == b"Name? "
        os.write(terminal, b"Eve\n")
        shown = read_until(terminal, lambda found: b"hello" in found and found.endswith(b"\n"))
        assert shown.startswith(b"Eve\r\n")
        assert shown.endswith(b"[1]<stdout>:\x1b[0mhello Eve\r\n")
        assert process.wait(PATIENCE_S) == 0


def test_a_debugger_takes_commands_while_the_other_rank_waits(tmp_path: Path) -> None:
    script = tmp_path / "debugged.py"
    script.write_text(DEBUGGED)
    with on_terminal("-np", "2", sys.executable, str(script), NO_COLOR="1") as (process, terminal):
        said = read_until(terminal, lambda found: found.endswith(b"(Pdb) "))
        for command, answer in ((b"p x", b"[0]<stdout>:41\r\n"), (b"x = 1", b""), (b"p x + 1", b"[0]<stdout>:2\r\n")):
            os.write(terminal, command + b"\n")
            heard = read_until(terminal, lambda found: found.endswith(b"(Pdb) "))
            assert heard == command + b"\r\n" + answer + b"(Pdb) "
        time.sleep(4)  # longer than a rank may be silent
        os.write(terminal, b"c\n")
        rest = read_until(terminal, lambda found: b"sum" in found and found.endswith(b"\n"))
        assert rest.endswith(b"[0]<stdout>:sum 3.0\r\n")
        assert process.wait(PATIENCE_S) == 0
    assert b"hvdlite" not in said + rest
    assert b"<stderr>" not in said + rest


def test_a_line_of_another_rank_does_not_run_into_a_prompt(tmp_path: Path) -> None:
    door = tmp_path / "door"
    os.mkfifo(door)
    program = f"import os\nif os.environ['RANK'] == '0': input('Go? ')\nelse: open('{door}').read(); print('other')"
    with on_terminal("-np", "2", *python(program), NO_COLOR="1") as (process, terminal):
        read_until(terminal, lambda found: found.endswith(b"Go? "))
        door.write_text("go\n")
        assert read_until(terminal, lambda found: found.endswith(b"Go? ")) == b"\r\n[1]<stdout>:other\r\nGo? "
        os.write(terminal, b"\n")
        assert process.wait(PATIENCE_S) == 0


def test_ctrl_d_is_the_end() -> None:
    with on_terminal("-np", "1", *python("print('ready'); " + TELL), NO_COLOR="1") as (process, terminal):
        read_until(terminal, lambda found: b"ready\r\n" in found)
        os.write(terminal, b"line\n\x04")
        read_until(terminal, lambda found: b"[0]<stdout>:'line\\n'\r\n" in found)
        assert process.wait(PATIENCE_S) == 0


@contextmanager
def shell() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """An interactive shell with job control, and its terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "--norc", "--noediting", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb", "PS1": "$ "},
        preexec_fn=partial(os.login_tty, theirs),
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_in_the_background_it_is_not_stopped_and_reads_on_in_the_foreground(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('ready')\nfor line in sys.stdin: print('got', line.strip())\nprint('end')\n")
    line = shlex.join([*COMMAND, "-np", "1", sys.executable, "-S", str(program)])
    with shell() as (_, terminal):
        read_until(terminal, lambda found: found.endswith(b"$ "))
        os.write(terminal, f"{line} &\n".encode())
        read_until(terminal, lambda found: b"[0]<stdout>:ready\r\n" in found)
        os.write(terminal, b"echo for the $((40 + 2))\n")
        read_until(terminal, lambda found: b"for the 42\r\n" in found)
        os.write(terminal, b"jobs\n")
        heard = read_until(terminal, lambda found: found.count(b"hvdlite.launcher.cli") == 1 and b"$ " in found)
        assert b"Running" in heard
        os.write(terminal, b"fg\n")
        read_until(terminal, lambda found: b"hvdlite.launcher.cli" in found)
        os.write(terminal, b"for the rank\n")
        read_until(terminal, lambda found: b"[0]<stdout>:got for the rank\r\n" in found)
        os.write(terminal, b"\x1a")
        read_until(terminal, lambda found: b"Stopped" in found)
        os.write(terminal, b"bg\necho again $((40 + 2))\n")
        read_until(terminal, lambda found: b"again 42\r\n" in found)
        os.write(terminal, b"fg\n")
        read_until(terminal, lambda found: b"hvdlite.launcher.cli" in found)
        os.write(terminal, b"once more\n\x04")
        read_until(
            terminal, lambda found: b"[0]<stdout>:got once more\r\n" in found and b"[0]<stdout>:end\r\n" in found
        )
