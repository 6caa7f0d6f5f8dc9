"""hvdrun with real workers: output, exit codes, environment, log files."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from operator import itemgetter
from pathlib import Path

import psutil

from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import python, read_until, run, started

_INNER_JOB = Path(__file__).with_name("inner_job.py")


def test_lines_have_the_prefix_of_their_rank_and_stay_on_their_stream() -> None:
    ended = run("-np", "2", "sh", "-c", "echo out; echo err >&2; printf unfinished")
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == [
        "[0]<stdout>:out",
        "[0]<stdout>:unfinished",
        "[1]<stdout>:out",
        "[1]<stdout>:unfinished",
    ]
    assert sorted(ended.stderr.splitlines()) == ["[0]<stderr>:err", "[1]<stderr>:err"]


def test_lines_stay_whole_however_they_are_written() -> None:
    program = """
import os
for number in range(2000):
    line = b"%d " % number + b"x" * (number % 300) + b"\\n"
    os.write(1, line[:50]); os.write(1, line[50:])
"""
    ended = run("-np", "4", *python(program))
    lines: dict[str, list[str]] = {}
    for line in ended.stdout.splitlines():
        rank, _, text = line.partition("<stdout>:")
        lines.setdefault(rank, []).append(text)
    expected = [f"{number} {'x' * (number % 300)}" for number in range(2000)]
    assert lines == {f"[{rank}]": expected for rank in range(4)}


def test_nothing_written_right_before_the_end_is_lost() -> None:
    ended = run("-np", "2", *python("import os; os.write(2, b'y' * 60_000); os._exit(0)"))
    assert sorted(map(len, ended.stderr.splitlines())) == [60_000 + len("[0]<stderr>:")] * 2


def test_a_command_keeps_all_its_words() -> None:
    ended = run("-np", "1", "--", "echo", "-np", "3", "--verbose", "--", "-x", "a b")
    assert ended.stdout == "[0]<stdout>:-np 3 --verbose -- -x a b\n"


def test_workers_know_who_they_are() -> None:
    program = "import json, os, sys; print(json.dumps([dict(os.environ), os.getsid(0), os.getpid(), sys.stdin.read()]))"
    ended = run("-np", "2", "-H", "localhost:2", "-x", "GREETING=hello there", *python(program), OMP_NUM_THREADS="3")
    by_rank = {line[1]: json.loads(line.partition(":")[2]) for line in ended.stdout.splitlines()}
    assert sorted(by_rank) == ["0", "1"]
    for rank, (environment, session, pid, stdin) in by_rank.items():
        assert environment["HVDLITE_RANK"] == environment["HOROVOD_RANK"] == environment["RANK"] == rank
        assert environment["HVDLITE_SIZE"] == environment["WORLD_SIZE"] == "2"
        assert (environment["GREETING"], environment["OMP_NUM_THREADS"]) == ("hello there", "3")
        assert (environment["PYTHONUNBUFFERED"], environment["MASTER_ADDR"]) == ("1", "127.0.0.1")
        assert (session, stdin) == (pid, "")
    for name in ("HVDLITE_JOB", "HVDLITE_SECRET", "HVDLITE_RENDEZVOUS", "MASTER_PORT"):
        assert by_rank["0"][0][name] == by_rank["1"][0][name] != ""


def test_the_secret_is_in_no_command_line() -> None:
    with started("-np", "1", "sh", "-c", 'echo "secret $HVDLITE_SECRET"; sleep 600') as process:
        assert process.stdout is not None
        shown = read_until(process.stdout.fileno(), lambda found: found.endswith(b"\n"))
        secret = shown.split()[-1].decode()
        assert len(secret) == 64
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        lines = [" ".join(member.cmdline()) for member in family]
        assert any("sleep" in line for line in lines)
        assert not [line for line in lines if secret in line]
        process.terminate()
        assert process.wait(PATIENCE_S) == 143


def test_log_files_hold_what_each_rank_wrote_and_the_terminal_shows_it_too(tmp_path: Path) -> None:
    ended = run(
        "-np", "11", "--output-filename", str(tmp_path / "logs"), "sh", "-c", r"printf 'a\rb %s' $RANK; echo e >&2"
    )
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [f"rank.{rank:02}" for rank in range(11)]
    assert (tmp_path / "logs/rank.07/stdout").read_bytes() == b"a\rb 7"
    assert (tmp_path / "logs/rank.10/stderr").read_bytes() == b"e\n"
    assert "[7]<stdout>:b 7\n" in ended.stdout


def test_one_rank_has_log_files_too(tmp_path: Path) -> None:
    assert run("-np", "1", "--output-filename", str(tmp_path), "echo", "x").returncode == 0
    assert (tmp_path / "rank.0/stdout").read_text() == "x\n"


def test_a_full_disk_does_not_stop_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    os.symlink("/dev/full", tmp_path / "rank.0/stdout")
    ended = run("-np", "1", "--output-filename", str(tmp_path), "sh", "-c", "echo one; echo two")
    assert (ended.returncode, ended.stdout) == (0, "[0]<stdout>:one\n[0]<stdout>:two\n")
    assert len(re.findall("No space left on device", ended.stderr)) == 1
    assert "8 bytes of the log files were dropped" in ended.stderr


def test_timestamps_come_before_the_prefix() -> None:
    ended = run("-np", "1", "-prefix-timestamp", "echo", "x", TZ="UTC")
    match = re.fullmatch(r"(.{24})\[0\]<stdout>:x\n", ended.stdout)
    assert match, ended.stdout
    time.strptime(match[1])


def test_without_a_terminal_a_progress_bar_is_one_line_and_nothing_is_coloured() -> None:
    program = "import sys\nfor i in range(50): sys.stderr.write(f'\\r{i}%'); sys.stderr.flush()\nprint(file=sys.stderr)"
    ended = run("-np", "1", *python(program))
    assert ended.stderr == "[0]<stderr>:49%\n"


def test_a_rank_may_end_early(tmp_path: Path) -> None:
    program = f"[ $RANK = 1 ] && exit 0; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; echo late"
    with started("-np", "2", "--verbose", "sh", "-c", program) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stderr.fileno(), lambda found: b"rank 1 on localhost ended with code 0" in found)
        (tmp_path / "go").touch()
        assert b"[0]<stdout>:late" in process.stdout.read()
        assert process.wait(PATIENCE_S) == 0


def test_the_workers_meet_through_the_launcher() -> None:
    program = """
from hvdlite.rendezvous.client import Exchanges, Meeting
from hvdlite.rendezvous.job import Job
from hvdlite.scope import Scope
from hvdlite.settings import Start
start = Start.read()
meeting = Meeting(Job(start.job, start.secret), start.rendezvous)
exchange = Exchanges(meeting, start.rank, start.size, Scope.of(300))
print(exchange(start.rank * 10))
"""
    ended = run("-np", "2", "python", "-c", program, PATH=f"{Path(python('')[0]).parent}:{os.environ['PATH']}")
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:[0, 10]", "[1]<stdout>:[0, 10]"], ended.stderr


def test_jobs_inside_a_job_are_jobs_of_their_own(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    options = ("-np", "2", "--timeline-filename", str(timeline), sys.executable, str(_INNER_JOB))
    ended = run(*options, PYTHONPATH=str(_INNER_JOB.parents[2]))
    assert ended.returncode == 0, ended.stderr
    outer = sorted((json.loads(line.partition(":")[2]) for line in ended.stdout.splitlines()), key=itemgetter("rank"))
    assert [(rank["rank"], rank["total"]) for rank in outer] == [(0, 2.0), (1, 2.0)]
    assert [(rank["rank"], rank["total"]) for found in outer for rank in found["inner"]] == [(0, 2.0), (1, 2.0)] * 2
    environments = [rank["environment"] for found in (outer, *(rank["inner"] for rank in outer)) for rank in found[:1]]
    assert [each["HVDLITE_TIMELINE"] for each in environments] == [str(timeline), None, None]
    assert len({each["HVDLITE_JOB"] for each in environments}) == 3
    ports = [each["MASTER_PORT"] for each in environments]
    assert ports[1] == "1"
    assert ports[2] not in (ports[0], None)
    assert {event["pid"] for event in json.loads(timeline.read_text())} == {0, 1}
