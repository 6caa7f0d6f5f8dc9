"""Jobs on hosts that are reached through a stand-in for ssh. All are this machine, each with a login of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import hvdlite
from hvdlite.horovod.runner import run as horovod_run
from tests.harness import FAKES
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import pids_in, read_until, run, started, still_alive

DESCRIBE = (sys.executable, "-S", "-c", "import json, os; print(json.dumps({**os.environ, 'cwd': os.getcwd()}))")


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arguments of every ssh of this test."""
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_LOG", str(tmp_path / "ssh.log"))
    return tmp_path / "ssh.log"


def described(ended: subprocess.CompletedProcess[str]) -> dict[int, dict[str, str]]:
    assert ended.returncode == 0, ended.stderr
    found = {}
    for line in ended.stdout.splitlines():
        rank, _, text = line.partition("<stdout>:")
        found[int(rank.strip("[]"))] = json.loads(text)
    return dict(sorted(found.items()))


def test_each_rank_is_on_its_host_with_what_belongs_to_the_job(log: Path) -> None:
    here, far, farther = described(
        run("-H", "localhost:1,far:1,me@farther:1", "-x", "NAMED", *DESCRIBE, NAMED="a 'b' $c", OTHER="kept here")
    ).values()
    assert [rank["HVDLITE_HOSTNAME"] for rank in (here, far, farther)] == ["localhost", "far", "farther"]
    assert [rank.get("FAKE_HOST") for rank in (here, far, farther)] == [None, "far", "farther"]
    assert far["NAMED"] == here["NAMED"] == "a 'b' $c"
    assert "OTHER" in here
    assert "OTHER" not in far
    assert len({rank["HVDLITE_RENDEZVOUS"] for rank in (here, far, farther)}) == 3
    assert [rank["HVDLITE_CROSS_RANK"] for rank in (here, far, farther)] == ["0", "1", "2"]
    assert far["HVDLITE_SECRET"] == here["HVDLITE_SECRET"]
    assert here["HVDLITE_SECRET"] not in log.read_text()
    assert log.read_text().count("BatchMode=yes") == 2


def test_hosts_without_slots_have_as_many_as_cores() -> None:
    ended = described(run("-H", "far,farther", *DESCRIBE))
    cores = len(os.sched_getaffinity(0))
    assert [rank["FAKE_HOST"] for rank in ended.values()] == ["far"] * cores + ["farther"] * cores


def test_auto_counts_the_gpus_of_each_host_and_ranks_may_have_their_own() -> None:
    command = ("-H", "localhost,fast", "-np", "auto", "--gpus-per-proc", "1", *DESCRIBE)
    ended = described(run(*command, CUDA_VISIBLE_DEVICES="7"))
    assert [(rank.get("FAKE_HOST"), rank["CUDA_VISIBLE_DEVICES"]) for rank in ended.values()] == [
        (None, "7"),
        ("fast", "4"),
        ("fast", "5"),
    ]
    both = described(run("-H", "fast,fast", "-np", "auto", "-ppn", "8", *DESCRIBE))
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in both.values()] == ["4,5", "4,5"]
    refused = run("-np", "auto", "--gpus-per-proc", "1", *DESCRIBE, CUDA_VISIBLE_DEVICES="")
    assert refused.returncode == 2
    assert "no host has 1 GPU(s) for a rank" in refused.stderr


def test_no_more_ranks_on_a_host_than_were_allowed() -> None:
    ended = described(run("-H", "far:4,farther:4", "-ppn", "1", *DESCRIBE))
    assert [rank["FAKE_HOST"] for rank in ended.values()] == ["far", "farther"]


def test_hosts_that_get_no_rank_are_not_connected(log: Path) -> None:
    assert set(described(run("-np", "1", "-H", "far:1,refused:8", *DESCRIBE))) == {0}
    assert "refused" not in log.read_text()


# Where nothing may be started: what the user reads.
@pytest.mark.parametrize(
    ("host", "message"),
    [
        (
            "refused",
            "cannot start on refused: ssh: connect to host refused port 22: Connection refused; no sshd listens",
        ),
        ("denied", "ssh-copy-id denied"),
        ("bare", "cannot start on bare: no Python was found there; name one with --remote-python"),
        ("old", "cannot start on old: it has hvdlite 0.0.9"),
        ("babbling", "cannot start on babbling: its agent sent an invalid message: no greeting"),
    ],
)
def test_a_host_that_cannot_start_is_one_line_and_nothing_runs_anywhere(
    host: str, message: str, tmp_path: Path
) -> None:
    ended = run("-H", f"localhost:1,{host}:1,far:1", "sh", "-c", f"touch {tmp_path}/started.$RANK")
    assert ended.returncode == 1
    assert message in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.glob("started.*")) == []
    for said in ("Connection refused", "Permission denied"):
        assert ended.stderr.count(said) == (said in ended.stderr)


def test_what_a_login_writes_is_no_output_of_a_rank() -> None:
    ended = run("-H", "noisy:1", "echo", "hello")
    assert (ended.returncode, ended.stdout) == (0, "[0]<stdout>:hello\n")
    assert ended.stderr == "hvdrun: noisy: noisy will be down on Sunday\n"


def test_a_copy_of_the_folder_is_where_ranks_of_other_hosts_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(open('data').read())\n")
    (tmp_path / "data").write_text("its data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here, far = described(run("-H", "localhost:1,far:1", "--sync", *DESCRIBE)).values()
    assert here["cwd"] == str(tmp_path)
    assert far["cwd"].startswith(f"{tmp_path}/home/.cache/hvdlite/sync/")
    assert (Path(far["cwd"]) / "data").read_text() == "its data"


def test_a_function_and_its_results_pass_through_ssh_too() -> None:
    here, far = hvdlite.run(os.getenv, ("FAKE_HOST",), np=2, hosts="localhost:1,far:1")
    assert (here, far) == (None, "far")


def test_horovods_run_reaches_hosts_as_it_is_told(log: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    here, far = horovod_run(
        os.getenv, ("FAKE_HOST",), num_proc=2, hosts="localhost:1,far:1", ssh_port=2200, ssh_identity_file=str(key)
    )
    assert (here, far) == (None, "far")
    words = log.read_text().splitlines()
    assert words[words.index("-p") :][:4] == ["-p", "2200", "-i", str(key)]


@pytest.mark.parametrize(
    "option",
    [
        {"network_interfaces": ["none8", "none9"]},
        {"network_interfaces": "none8,none9"},
        {"network_interface": "none8,none9"},
    ],
)
def test_horovods_run_names_interfaces(option: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdlite.running.caller.Call.results", lambda call: call._arguments)
    words = horovod_run(os.getenv, ("FAKE_HOST",), **option)
    assert words[words.index("--network-interfaces") + 1] == "none8,none9"


def test_a_program_that_another_host_lacks_is_told() -> None:
    ended = run("-H", "far:1", "no-such-program")
    assert ended.returncode == 1
    assert (
        "on far could not be started: No such file or directory: no-such-program; check that it exists" in ended.stderr
    )


def test_two_names_of_another_host_are_told_and_share_its_cores() -> None:
    ended = run("-H", "twin1:1,far:1,twin2:1", *DESCRIBE)
    assert ended.stderr == "hvdrun: twin1 and twin2 are one machine and count as 2 hosts; twin1:N is one host\n"
    cores = len(os.sched_getaffinity(0))
    threads = [int(found["OMP_NUM_THREADS"]) for found in described(ended).values()]
    assert threads == [max(1, cores // 2), cores, max(1, cores // 2)]


def test_verbose_tells_what_sync_sends_and_how_hosts_are_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").write_text("")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ended = run("-H", "localhost:1,far:1", "--sync", "--verbose", "true")
    assert ended.returncode == 0, ended.stderr
    assert "hvdrun: --sync sends 1 file(s), 1 KiB packed, to far\n" in ended.stderr
    assert "hvdrun: the others reach far at 127.0.0.1, for all hosts are one machine\n" in ended.stderr
    assert f"; ranks start in {tmp_path}/home/.cache/hvdlite/sync/work-" in ended.stderr


def test_a_dry_run_shows_the_line_of_each_host_and_connects_to_none(log: Path) -> None:
    ended = run("-H", "localhost:1,me@far:2", "-p", "2200", "--dry-run", "true")
    assert ended.returncode == 0
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("  ssh ")]
    assert " -p 2200 " in line
    assert line.endswith(" -- me@far AGENT")
    assert " -- me@far 'exec sh -c " in run("-H", "localhost:1,me@far:2", "--dry-run", "--verbose", "true").stdout
    assert not log.exists()


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_a_signal_ends_ranks_elsewhere_too(name: str, code: int, tmp_path: Path) -> None:
    program = f"echo $$ > {tmp_path}/pid.$RANK; echo ready; exec sleep 600"
    with started("-H", "localhost:1,far:1", "sh", "-c", program) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 2)
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.wait(PATIENCE_S) == code
    assert still_alive(pids_in(tmp_path), within_s=PATIENCE_S) == []


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", -signal.SIGTERM), ("KILL", -signal.SIGKILL)])
def test_a_signal_while_hosts_are_connected_ends_all_ssh(name: str, code: int) -> None:
    with started("-H", "silent:1,far:1", "true") as process:
        assert process.stderr is not None
        read_until(process.stderr.fileno(), lambda found: found == b"hvdrun: silent: connected\n")
        below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert below
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.wait(PATIENCE_S) == code
        assert still_alive(below, within_s=PATIENCE_S) == []


def test_signals_for_the_ranks_reach_them_on_every_host() -> None:
    program = "trap 'echo first; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    with started("-H", "localhost:1,far:1", "sh", "-c", program) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 2)
        process.send_signal(signal.SIGUSR1)
        read_until(process.stdout.fileno(), lambda found: found.count(b"first") == 2)
        assert process.wait(PATIENCE_S) == 0


def test_a_script_that_does_not_come_along_is_missed_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work/venv").mkdir(parents=True)
    (tmp_path / "work/venv/train.py").write_text("print('it runs')\n")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ended = run("-H", "localhost:1,far:1", "--sync", "python3", "venv/train.py")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "cannot start on far: there is no file " in ended.stderr
    assert "--sync left it out" in ended.stderr
    shared = run("-H", "localhost:1,far:1", "python3", "venv/train.py")
    assert sorted(shared.stdout.splitlines()) == ["[0]<stdout>:it runs", "[1]<stdout>:it runs"], shared.stderr
