"""hvdrun says what a rank did that nobody could ask any more, because it was killed."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.launcher.hvdrun import run

_JOB = """
import ctypes, os, signal, threading, time
import numpy as np
import hvdlite as hvd
from hvdlite.blackbox import format as blackbox
from hvdlite.settings import Settings

NOTED = int(Settings.read().blackbox.partition(":")[0])

def die(how):
    def die_once_noted():
        while not asleep or blackbox.read(NOTED).noted_at < asleep[0]:
            time.sleep(0.05)
        how()

    asleep = []  # since when; another thread reads the box, so that each later note has this thread here
    threading.Thread(target=die_once_noted, daemon=True).start()
    asleep.append(time.monotonic())
    time.sleep(600)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)
"""
_TRAINING = (
    _JOB
    + """
hvd.init()
for step in range(5000):
    hvd.allreduce(np.ones(3), name="weights")
    if step == {steps} and hvd.rank() == {culprit}:
        die({how})
"""
)


def _script(folder: Path, program: str) -> Path:
    script = folder / "train.py"
    script.write_text(program)
    return script


def _box(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith(("|", "+--"))]


@pytest.mark.parametrize(
    ("ranks", "culprit", "how", "steps"), [(1, 0, "kill", 0), (2, 1, "kill", 4200), (3, 0, "crash", 7)]
)
def test_the_box_says_what_the_killed_rank_did(tmp_path: Path, ranks: int, culprit: int, how: str, steps: int) -> None:
    script = _script(tmp_path, _TRAINING.format(culprit=culprit, how=how, steps=steps))
    ended = run("-np", str(ranks), "sh", "-c", f"{shlex.quote(sys.executable)} {script}; kill -$(($? - 128)) $$")
    assert ended.returncode == 128 + {"kill": 9, "crash": 11}[how], ended.stderr
    box = _box(ended.stderr)
    assert f"rank {culprit} on localhost was ended by signal" in box[0]
    said = box[box.index("| what it did last:") + 1 :]
    finished = rf"\|   \d+\.\d s before its end it finished batch {steps + 1} \('weights'\), the last of {steps + 1}"
    assert re.fullmatch(finished, said[0])
    assert re.fullmatch(r"\|   \d\.\d s before its end it was at work, with nothing in flight", said[1])
    assert re.fullmatch(rf"\|   the main thread was in die, {script}:\d+", said[2])
    assert re.fullmatch(rf"\|   called by <module>, {script}:\d+", said[3])


def test_the_box_has_batches_of_names_that_are_no_utf_8(tmp_path: Path) -> None:
    program = 'hvd.init(); hvd.allreduce(np.ones(3), name="a\\udc80"); die(kill)\n'
    ended = run("-np", "1", sys.executable, str(_script(tmp_path, _JOB + program)))
    assert ended.returncode == 137, ended.stderr
    assert "it finished batch 1 ('a?'), the last of 1" in "\n".join(_box(ended.stderr))
    assert "ERROR" not in ended.stderr


def test_a_rank_that_was_killed_while_it_waited_is_said_to_have_waited(tmp_path: Path) -> None:
    """In a folder whose name a terminal would obey."""
    (folder := tmp_path / "\x1b]0;title\x07\nhvdrun: all is well").mkdir()
    script = _script(
        folder,
        _JOB
        + """
hvd.init()
if hvd.rank() == 1:
    threading.Thread(target=die, args=(kill,), daemon=True).start()
    hvd.allreduce(np.ones(3), name="only here")
time.sleep(600)
""",
    )
    ended = run("-np", "2", sys.executable, str(script))
    assert ended.returncode == 137, ended.stderr
    box = "\n".join(_box(ended.stderr))
    assert "|   it had finished no collective\n" in box
    assert re.search(r"it had waited for \d\.\d s, with 'only here' in flight\n", box)
    shown = re.escape(f"{tmp_path}/?]0;title? hvdrun: all is well/train.py:")
    assert re.search(rf"the main thread was in .*allreduce, .*\n\|   called by <module>, {shown}", box)
    assert not {"\x1b", "\x07"} & set(ended.stderr)


def test_a_rank_that_was_killed_in_init_is_said_to_have_been_there(tmp_path: Path) -> None:
    script = _script(
        tmp_path,
        _JOB
        + """
if os.environ["RANK"] == "1":
    def kill_in_init():
        while blackbox.read(NOTED) is None:
            time.sleep(0.01)
        kill()
    threading.Thread(target=kill_in_init, daemon=True).start()
    hvd.init()
time.sleep(600)
""",
    )
    ended = run("-np", "2", sys.executable, str(script))
    assert ended.returncode == 137, ended.stderr
    assert "|   it was in init(), and not all ranks had come" in _box(ended.stderr)


def test_a_rank_that_was_killed_after_shutdown_had_left(tmp_path: Path) -> None:
    ended = run("-np", "1", sys.executable, str(_script(tmp_path, _JOB + "\nhvd.init()\nhvd.shutdown()\nkill()")))
    assert "|   it had left the job by shutdown()" in _box(ended.stderr)


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), 15)", "raise KeyError(7)"])
def test_nothing_is_said_of_a_rank_that_ended_in_a_way_of_its_own(tmp_path: Path, end: str) -> None:
    script = _script(tmp_path, _JOB + f"import sys\nhvd.init()\nhvd.barrier()\n{end}")
    ended = run("-np", "2", sys.executable, str(script))
    assert ended.returncode in (1, 3, 143)
    assert "did last" not in ended.stderr


def test_a_program_that_is_no_rank_has_nothing_to_say() -> None:
    ended = run("-np", "1", "sh", "-c", "kill -9 $$")
    assert ended.returncode == 137
    assert "did last" not in ended.stderr
