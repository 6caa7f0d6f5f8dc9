"""Ctrl-C: ranks and their children end as they do without hvdrun, and hvdrun says nothing of who was first."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdlite.launcher.decisions.supervisor import INTERRUPT_GRACE_S
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import pids_in, python, read_until, started, still_alive

# What each rank does about Ctrl-C, and the file that shows that it was given the time for it. One goes down by itself.
RANKS = """
import os, subprocess, sys, time
rank, folder = int(os.environ["RANK"]), {folder!r}
def save(name): open(os.path.join(folder, name), "w").close()
def wait(): print("ready", flush=True); time.sleep(600)
def handle():
    try:
        wait()
    except KeyboardInterrupt:
        time.sleep(1)
        save("except")
def clean_up():
    try:
        wait()
    finally:
        save("finally")
def have_children():
    child = (
        "import time\\ntry: print('ready', flush=True); time.sleep(600)\\n"
        "except KeyboardInterrupt: open({folder!r} + '/%s', 'w').close()"
    )
    in_group = subprocess.Popen([sys.executable, "-S", "-c", child % "child in the group"])
    in_session = subprocess.Popen([sys.executable, "-S", "-c", child % "child in the session"], process_group=0)
    try:
        print("ready", flush=True)
        in_group.wait()
    except KeyboardInterrupt:
        sys.exit(max(in_group.wait(), in_session.wait()))
def crash():
    try:
        wait()
    except KeyboardInterrupt:
        os.abort()
(handle, clean_up, have_children, crash)[rank]()
"""


def interrupt(process: subprocess.Popen[bytes], programs: int) -> float:
    """Sends Ctrl-C when so many programs are ready for it; the monotonic time just before."""
    assert process.stdout is not None
    read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == programs)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    return begun


def test_ranks_and_their_children_handle_it_themselves(tmp_path: Path) -> None:
    with started("-np", "4", *python(RANKS.format(folder=str(tmp_path)))) as process:
        interrupt(process, 4 + 2)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 130
    expected = ["child in the group", "child in the session", "except", "finally"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected
    assert "[1]<stderr>:KeyboardInterrupt" in said
    assert [line for line in said.splitlines() if "<stderr>" not in line] == [
        "hvdrun: SIGINT: ending 4 rank(s); once more kills them at once"
    ]


def test_a_program_behind_a_shell_that_dies_at_once_has_its_time_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import time\n"
        f"try:\n    print('ready', flush=True); time.sleep(600)\n"
        f"except KeyboardInterrupt:\n    time.sleep(1); open('{tmp_path}/saved', 'w')\n"
    )
    command = shlex.join([sys.executable, "-S", str(program)])
    with started("-np", "1", "sh", "-c", f"{command}; true") as process:
        interrupt(process, 1)
        assert process.wait(PATIENCE_S) == 130
    assert (tmp_path / "saved").exists()


INTERRUPTS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("module", "is_module"), [("click", False), ("hvdlite.launcher.job.execute", False), ("click", True)]
)
def test_ctrl_c_while_hvdrun_is_imported_is_one_line(module: str, is_module: bool, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(module=module))
    (tmp_path / "hvdrun").write_text("import sys\nfrom hvdlite.launcher.cli import main\nsys.exit(main())\n")
    ended = subprocess.run(
        [sys.executable, *(("-m", "hvdlite") if is_module else (str(tmp_path / "hvdrun"),)), "-np", "1", "true"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == "hvdrun: interrupted before anything was started\n"


DEAF = (
    "echo $$ > {folder}/pid.$RANK; trap '' INT; trap 'touch {folder}/ended.$RANK; exit 0' TERM; "
    "echo ready; while :; do sleep 0.1; done"
)


def test_what_is_deaf_to_it_gets_sigterm(tmp_path: Path) -> None:
    with started("-np", "2", "sh", "-c", DEAF.format(folder=tmp_path)) as process:
        begun = interrupt(process, 2)
        assert process.wait(PATIENCE_S) == 130
        assert time.monotonic() - begun > INTERRUPT_GRACE_S - 0.5
    assert len(list(tmp_path.glob("ended.*"))) == 2
    assert still_alive(pids_in(tmp_path), within_s=0.0) == []


def test_a_second_one_kills_at_once(tmp_path: Path) -> None:
    with started("-np", "2", "sh", "-c", DEAF.format(folder=tmp_path)) as process:
        interrupt(process, 2)
        assert process.stderr is not None
        read_until(process.stderr.fileno(), lambda found: b"once more" in found)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert list(tmp_path.glob("ended.*")) == [], "it did not wait for SIGTERM's turn"
    assert still_alive(pids_in(tmp_path), within_s=0.0) == []


def test_the_companions_of_a_failed_rank_still_get_sigterm(tmp_path: Path) -> None:
    program = f"""
        trap 'echo TERM > {tmp_path}/got; exit 0' TERM; trap 'echo INT > {tmp_path}/got; exit 0' INT
        touch {tmp_path}/ready.$RANK; while [ ! -e {tmp_path}/ready.1 ]; do sleep 0.1; done
        [ $RANK = 0 ] && exit 3; while :; do sleep 0.1; done
    """
    with started("-np", "2", "sh", "-c", program) as process:
        assert process.wait(PATIENCE_S) == 3
    assert (tmp_path / "got").read_text() == "TERM\n"
