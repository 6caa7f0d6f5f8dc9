"""``hvdrun blackbox``: what ranks did last, read by people, and by PyTorch's own analyzer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdlite.launcher.blackbox.boxes import of_folder
from hvdlite.launcher.blackbox.flight_recorder import NAMES
from hvdlite.launcher.blackbox.groups import groups_of
from hvdlite.negotiation.messages import Kind
from tests.harness.patience import PATIENCE_S, until
from tests.launcher.hvdrun import python, run, started

_TRAINING = """
import os, signal, sys, time
import numpy as np
import hvdlite as hvd
from pathlib import Path
hvd.init(process_sets=(pairs := [hvd.ProcessSet([0, 2])]))
for step in range({steps}):
    hvd.grouped_allreduce([np.ones(1000, np.float32)] * 3, name="gradients")
    hvd.allgather(np.ones((hvd.rank() + 1, 2)), name="losses")
    hvd.broadcast(np.ones(3), 0, name="weights")
    hvd.reducescatter(np.ones(7), name="parts")
    hvd.alltoall(np.ones(3), name="rows")
    hvd.barrier()
    if hvd.rank() != 1:
        hvd.allreduce(np.ones(5), name="pair", process_set=pairs[0])
{end}
"""
_WAIT = """
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
_STUCK = "if hvd.rank() != 1: hvd.allreduce(np.ones(5), name='only here: 0 and 2')" + _WAIT
_CROSSED = "hvd.allreduce(np.ones(5), name='even' if hvd.rank() % 2 == 0 else 'odd')"


@contextmanager
def _job(tmp_path: Path, end: str, *words: str, steps: int = 5) -> Iterator[subprocess.Popen[bytes]]:
    """A job of three ranks, until all of them are where ``words`` say."""
    (script := tmp_path / "train.py").write_text(_TRAINING.format(end=end, steps=steps))
    arguments = ("-np", "3", "--output-filename", str(tmp_path / "logs"), sys.executable, str(script))
    with started(*arguments, str(tmp_path / "over")) as hvdrun:

        def is_there() -> bool:
            shown = run("blackbox", str(hvdrun.pid)).stdout
            ranks = shown.split("rank ")[1:]
            return len(ranks) == 3 and all(word in rank for rank, word in zip(ranks, words, strict=True))

        until(is_there)
        yield hvdrun


def _analyzed(folder: Path, *options: str) -> str:
    """What torchfrtrace says of the dumps in ``folder``."""
    tool = Path(sys.executable).parent / "torchfrtrace"
    ended = subprocess.run(
        [tool, str(folder), *options], capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder.parent
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr.replace("tabulate is not installed. Proceeding without it.\n", "")


_WAITS, _NOTHING = "s, with 'only here: 0 and 2' in flight", "it was at work, with nothing in flight"


def test_torchs_analyzer_names_the_rank_that_misses_a_collective(tmp_path: Path) -> None:
    with _job(tmp_path, _STUCK, _WAITS, _NOTHING, _WAITS) as hvdrun:
        shown = run("blackbox", str(hvdrun.pid), "--torch", str(tmp_path / "running"))
        assert shown.stdout == f"{tmp_path}/running has 3 rank(s), for torchfrtrace {tmp_path}/running\n", shown.stderr
        assert run("blackbox", str(tmp_path / "logs")).stdout.count("ago it finished batch") == 3
        hvdrun.terminate()
        assert hvdrun.wait(PATIENCE_S) == 143
    shown = run("blackbox", str(tmp_path / "logs"), "--torch", str(tmp_path / "ended"))
    assert shown.returncode == 0, shown.stderr
    for folder in (tmp_path / "running", tmp_path / "ended"):
        found = _analyzed(folder).splitlines()
        assert re.fullmatch(r"Not all ranks joining collective, sequence number: \d+", found[0])
        assert "group info: 0:default_pg" in found
        assert "collective: nccl:all_reduce only here_ 0 and 2" in found
        assert "missing ranks: {1}" in found
        assert "collective state: scheduled" in found
        assert any(line.startswith("<module> at ") and "train.py:" in line for line in found)
        assert sum("sequence number" in line for line in found) == 1


def test_ranks_that_wait_for_each_other_both_miss_one(tmp_path: Path) -> None:
    with _job(tmp_path, _CROSSED, "'even' in flight", "'odd' in flight", "'even' in flight") as hvdrun:
        assert run("blackbox", str(hvdrun.pid), "--torch", str(tmp_path / "out")).returncode == 0
    found = _analyzed(tmp_path / "out")
    assert "all_reduce even\nmissing ranks: {1}" in found
    assert "all_reduce odd\nmissing ranks: {0, 2}" in found


def test_a_rank_that_was_killed_is_the_one_that_is_missing(tmp_path: Path) -> None:
    killed = f"if hvd.rank() == 1:{_WAIT.replace(chr(10), chr(10) + '    ')}os.kill(os.getpid(), signal.SIGKILL)\n"
    with _job(tmp_path, killed + _STUCK, _WAITS, _NOTHING, _WAITS) as hvdrun:
        (tmp_path / "over").touch()
        assert hvdrun.wait(PATIENCE_S) == 137
    assert run("blackbox", str(tmp_path / "logs"), "--torch", str(tmp_path / "out")).returncode == 0
    found = _analyzed(tmp_path / "out")
    assert "all_reduce only here_ 0 and 2\nmissing ranks: {1}" in found
    shown = run("blackbox", str(tmp_path / "logs")).stdout
    assert shown.count("before its end it finished batch") == 3
    assert len(re.findall(r"it had waited for \d+\.\d s, with 'only here: 0 and 2' in flight", shown)) == 2


@pytest.mark.parametrize("steps", [5, 1000])
def test_of_a_job_that_went_well_nothing_is_missing(tmp_path: Path, steps: int) -> None:
    """Ranks in more groups remember less of each."""
    (tmp_path / "over").touch()
    (script := tmp_path / "train.py").write_text(_TRAINING.format(end=_WAIT, steps=steps))
    logs = str(tmp_path / "logs")
    ended = run("-np", "3", "--output-filename", logs, sys.executable, str(script), str(tmp_path / "over"))
    assert ended.returncode == 0, ended.stderr
    assert run("blackbox", logs, "--torch", str(tmp_path / "out")).returncode == 0
    assert _analyzed(tmp_path / "out") == ""
    boxes, size = of_folder(tmp_path / "logs")
    groups = groups_of(boxes, size)
    assert {number: group.ranks for number, group in groups.items()} == {0: [0, 1, 2], 1: [0, 2]}
    assert groups[0].batches[-1][0] >= 6 * steps  # init makes some too
    assert len(groups[0].batches) >= min(6 * steps, 3500)
    assert {record.kind for _, record in groups[0].batches} <= NAMES.keys()


def test_of_a_job_that_goes_on_nothing_is_missing_either(tmp_path: Path) -> None:
    """Its boxes are read one after another, and so are of different moments."""
    endless = "while not hvd.allreduce(np.array([float(Path(sys.argv[1]).exists())]), name='is over').any(): pass"
    with _job(tmp_path, endless, *["'is over'"] * 3) as hvdrun:
        for _ in range(3):
            assert run("blackbox", str(hvdrun.pid), "--torch", str(tmp_path / "out")).returncode == 0
            assert _analyzed(tmp_path / "out") == ""
        (tmp_path / "over").touch()
        assert hvdrun.wait(PATIENCE_S) == 0


def test_what_is_written_is_what_the_analyzer_reads_and_nothing_else(tmp_path: Path) -> None:
    """A pickle of nothing but containers, texts and numbers: no name of a function or class is in it."""
    with _job(tmp_path, _STUCK, _WAITS, _NOTHING, _WAITS) as hvdrun:
        assert run("blackbox", str(hvdrun.pid), "--torch", str(tmp_path / "out")).returncode == 0
        (tmp_path / "over").touch()
    assert sorted(os.listdir(tmp_path / "out")) == ["rank_0", "rank_1", "rank_2"]
    program = "import pickletools, sys; print(*{op.name for op, _, _ in pickletools.genops(open(sys.argv[1], 'rb'))})"
    for path in (tmp_path / "out").iterdir():
        ended = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
        assert not {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ"} & {*ended.stdout.split()}


def test_what_is_no_job_no_folder_or_no_box_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "logs" / "rank.0").mkdir(parents=True)
    for words, part in {
        (str(tmp_path / "nothing"),): "is neither the process of an hvdrun nor a folder",
        (str(tmp_path),): "is neither the process of an hvdrun nor a folder",
        (str(tmp_path / "logs"),): "or its hvdrun was killed",
        ("1",): "hvdrun",
    }.items():
        ended = run("blackbox", *words)
        *of_jobs, line = ended.stderr.splitlines()  # of those that other tests run
        assert (ended.returncode in (1, 2), part in line) == (True, True)
        assert not of_jobs or words == ("1",)
    sleeps = python("import time; print('runs', flush=True); time.sleep(600)")
    with started("-np", "1", "--output-filename", str(tmp_path / "logs"), *sleeps) as hvdrun:
        assert hvdrun.stdout is not None
        hvdrun.stdout.readline()
        ended = run("blackbox", str(tmp_path / "logs"))
        assert ended.stderr.endswith("none of them called init(). See 'hvdrun --help'.\n")
        hvdrun.terminate()
    (tmp_path / "rank.0").mkdir()
    for written in (
        "",
        "{}",
        "[" * 99999,
        json.dumps({"rank": 0, "host": "a", "at": 1.0, "epoch_s": 0.5, "box": "eJ"}),
    ):
        (tmp_path / "rank.0" / "blackbox").write_text(written)
        ended = run("blackbox", str(tmp_path))
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "rank.0/blackbox is no black box" in ended.stderr


def test_other_files_are_not_put_among_the_dumps(tmp_path: Path) -> None:
    logs = str(tmp_path / "logs")
    program = "import hvdlite as hvd; hvd.init(); hvd.barrier()"
    assert run("-np", "1", "--output-filename", logs, sys.executable, "-c", program).returncode == 0
    (out := tmp_path / "out").mkdir()
    (out / "rank_7").touch()
    assert run("blackbox", logs, "--torch", str(out)).returncode == 0
    assert os.listdir(out) == ["rank_0"]
    (out / "notes").touch()
    ended = run("blackbox", logs, "--torch", str(out))
    assert (ended.returncode, "torchfrtrace would read notes there too" in ended.stderr) == (2, True)


def test_each_kind_has_the_name_that_the_analyzer_knows() -> None:
    from torch.distributed.flight_recorder.components.types import COLLECTIVES

    assert {Kind(number).name for number in NAMES} == {kind.name for kind in Kind} - {"SEND", "JOIN"}
    assert set(NAMES.values()) <= COLLECTIVES
    assert NAMES[Kind.ALLREDUCE] == "all_reduce"
    assert NAMES[Kind.BROADCAST] == "broadcast"
    assert NAMES[Kind.ALLTOALL] == "all_to_all_v_single"
