"""hvdrun over several hosts: who runs where and knows what, and what comes back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.harness.hosts import Network
from tests.hosts.jobs import hvdrun, lines_by_rank, reported
from tests.hosts.starting import Start
from tests.launcher.hvdrun import python

DESCRIBE = python(
    "import json, os; print(json.dumps({**os.environ, 'node': os.uname().nodename, 'in': os.getcwd()}, sort_keys=True))"
)
CORES = len(os.sched_getaffinity(0))


def places(ranks: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    """Host, local rank and size, and cross rank and size of each rank."""
    pairs = [[f"{rank[f'HVDLITE_{kind}_RANK']}/{rank[f'HVDLITE_{kind}_SIZE']}" for kind in ("LOCAL", "CROSS")]
             for rank in ranks]  # fmt: skip
    return [(rank["node"], *pair) for rank, pair in zip(ranks, pairs, strict=True)]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("c:1,b:1", ["c 0/1 0/2", "b 0/1 1/2"]),
        ("a:1,b:2,c:1", ["a 0/1 0/3", "b 0/2 1/3", "b 1/2 0/1", "c 0/1 2/3"]),
    ],
)
def test_ranks_are_numbered_host_by_host(network: Network, start: Start, hosts: str, expected: list[str]) -> None:
    ranks = reported(start.run(network, hosts, *DESCRIBE))
    assert [" ".join(place) for place in places(ranks)] == expected
    for number, rank in enumerate(ranks):
        assert rank["RANK"] == rank["HOROVOD_RANK"] == rank["HVDLITE_RANK"] == str(number)
        assert rank["WORLD_SIZE"] == rank["HVDLITE_SIZE"] == str(len(ranks))
        assert rank["HOROVOD_HOSTNAME"] == rank["HVDLITE_HOSTNAME"] == rank["node"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-H", "a:2,b:2"), ["a 0/2 0/2", "a 1/2 0/2", "b 0/2 1/2", "b 1/2 1/2"]),
        (("-np", "3", "-H", "a:2,b:2,c:2"), ["a 0/2 0/2", "a 1/2 0/1", "b 0/1 1/2"]),
        (("-H", "a:2,b:2,c:2", "-ppn", "1"), ["a 0/1 0/3", "b 0/1 1/3", "c 0/1 2/3"]),
        (("-H", "a:1,root@b:1"), ["a 0/1 0/2", "b 0/1 1/2"]),
    ],
)
def test_ranks_are_where_the_list_says(network: Network, options: tuple[str, ...], expected: list[str]) -> None:
    ranks = reported(hvdrun(network["a"], *options, *DESCRIBE))
    assert [" ".join(place) for place in places(ranks)] == expected


def test_two_names_of_another_host_are_told_and_share_its_cores(network: Network) -> None:
    b = network["b"].address
    ended = hvdrun(network["a"], "-H", f"b:1,c:1,{b}:1", *DESCRIBE)
    ranks = reported(ended)
    assert f"hvdrun: b and {b} are one machine and count as 2 hosts; b:N is one host\n" in ended.stderr
    shared = str(max(1, CORES // 2))
    assert [rank["OMP_NUM_THREADS"] for rank in ranks] == [shared, str(CORES), shared]


def test_a_host_file_with_comments_and_without_slots(network: Network, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# ours\na slots=1\n\nb  # as many as it has cores\n")
    ranks = reported(hvdrun(network["a"], "--hostfile", str(tmp_path / "hosts"), *DESCRIBE))
    assert [rank["node"] for rank in ranks] == ["a", *["b"] * CORES]


def test_ranks_run_in_the_folder_of_hvdrun(network: Network, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    command = (sys.executable, "-m", "hvdlite.launcher.cli", "-H", "a:1,b:1", *DESCRIBE)
    ended = network["a"].run(*command, cwd=folder, env={"PYTHONPATH": os.getcwd()})
    assert [rank["in"] for rank in reported(ended)] == [str(folder)] * 2


@pytest.mark.parametrize("start", ["local", "ssh", "nodes"], indirect=True)
def test_what_ranks_write_has_their_prefix_and_stays_on_its_stream(network: Network, start: Start) -> None:
    program = "echo out $HVDLITE_RANK; echo err $HVDLITE_RANK >&2; printf unfinished"
    ended = start.run(network, "a:1,b:2", "sh", "-c", program)
    assert lines_by_rank(ended) == {rank: [f"out {rank}", "unfinished"] for rank in range(3)}
    assert sorted(ended.stderr.splitlines()) == [f"[{rank}]<stderr>:err {rank}" for rank in range(3)]


def test_much_output_from_all_hosts_comes_whole(network: Network) -> None:
    program = "import os\nfor number in range(20_000): os.write(1, b'%d %s\\n' % (number, b'x' * 80))"
    ended = hvdrun(network["a"], "-H", "a:1,b:1,c:1", *python(program))
    lines = [f"{number} {'x' * 80}" for number in range(20_000)]
    assert lines_by_rank(ended) == dict.fromkeys(range(3), lines)


def test_log_files_are_on_the_host_of_hvdrun(network: Network, start: Start, tmp_path: Path) -> None:
    program = "echo log of $HVDLITE_HOSTNAME"
    ended = start.run(network, "a:1,b:1", "--output-filename", str(tmp_path), "sh", "-c", program)
    assert ended.returncode == 0, ended.stderr
    assert [(tmp_path / f"rank.{rank}/stdout").read_text() for rank in (0, 1)] == ["log of a\n", "log of b\n"]


def test_other_hosts_get_what_the_user_names_and_what_a_job_needs(network: Network) -> None:
    environment = {
        "OF_THE_USER": "1",
        "NAMED": "two words; $HOME 'x'",
        "HVDLITE_LOG_LEVEL": "info",
        "OMP_NUM_THREADS": "3",
    }
    here, there = reported(
        hvdrun(network["a"], "-H", "a:1,b:1", "-x", "NAMED", "-x", "SET=a=b", *DESCRIBE, **environment)
    )
    assert (here["OF_THE_USER"], "OF_THE_USER" in there) == ("1", False)
    for rank in (here, there):
        assert (rank["NAMED"], rank["SET"]) == (environment["NAMED"], "a=b")
        assert (rank["HVDLITE_LOG_LEVEL"], rank["OMP_NUM_THREADS"]) == ("info", "3")
        assert rank["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_links_of_ranks_get_the_address_of_their_own_host(network: Network, start: Start) -> None:
    ranks = reported(start.run(network, "a:1,b:1,c:1", *DESCRIBE))
    assert [rank["HVDLITE_ADDRESS"] for rank in ranks] == [network[name].address for name in "abc"]
    assert {rank["MASTER_ADDR"] for rank in ranks} == {network["a"].address}


def test_the_first_failing_rank_decides_the_code_wherever_it_is(network: Network, start: Start) -> None:
    program = "[ $RANK = 2 ] || exec sleep 600; seq 1 30 >&2; exit 7"
    ended = start.run(network, "a:2,b:1,c:1", "sh", "-c", program)
    assert ended.returncode == 7
    box = [line for line in ended.stderr.splitlines() if line.startswith(("+", "|"))]
    assert "rank 2 on b ended with code 7" in box[0]
    assert [line.split()[-1] for line in box if line.startswith("|   ")] == ["30"]
    assert sum("hvdrun" in line for line in box) == 1


def test_a_rank_elsewhere_that_dies_of_a_signal_gives_128_and_its_number(network: Network, start: Start) -> None:
    ended = start.run(network, "a:1,b:1", "sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 600")
    assert ended.returncode == 128 + 11
    assert "rank 1 on b was ended by signal 11 (SIGSEGV)" in ended.stderr


def test_a_dry_run_shows_the_ssh_lines_and_starts_nothing(network: Network, tmp_path: Path) -> None:
    ended = hvdrun(network["a"], "-H", "a:1,b:2", "-p", "22", "--dry-run", "touch", str(tmp_path / "started"))
    assert ended.returncode == 0, ended.stderr
    assert any(line.split()[:1] == ["ssh"] and " b " in line for line in ended.stdout.splitlines())
    assert not (tmp_path / "started").exists()
    assert "SECRET=(hidden)" in ended.stdout
