"""Jobs for which hvdrun is started on every node: what binds the nodes together, and what they refuse."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hvdlite.launcher.nodes.records import Record
from tests.harness.hosts import ROOT
from tests.harness.patience import PATIENCE_S, until
from tests.hosts.nodes import KEY, WAIT, Node, ending, free_port, in_place_of_node_0, job, node, ready, run, start
from tests.launcher.hvdrun import python

HERE = socket.gethostname()
SOON = ("--start-timeout", "2")


def test_ranks_of_all_nodes_are_one_job_and_node_0_shows_what_they_write() -> None:
    say = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $HVDLITE_CROSS_RANK/$HVDLITE_CROSS_SIZE"
    first, *others = run("sh", "-c", say, count=3)
    lines = [f"[{rank}]<stdout>:{rank}/3 0/1 {rank}/3" for rank in range(3)]
    assert (first.code, sorted(first.out.splitlines()), first.err) == (0, lines, "")
    assert others == [(0, "", "")] * 2


def test_each_node_says_how_many_ranks_it_takes_and_node_0_how_many_there_are() -> None:
    port, program = free_port(), ("sh", "-c", "echo $RANK $HVDLITE_HOSTNAME")
    nodes = [node(0, 2, port, "-ppn", "1", "-np", "3", *program), node(1, 2, port, "-ppn", "3", *program)]
    with ending(*nodes):
        ended = [each.rest() for each in nodes]
    names = [HERE, f"{HERE}#1", f"{HERE}#1"]
    assert sorted(ended[0].out.splitlines()) == [f"[{rank}]<stdout>:{rank} {names[rank]}" for rank in range(3)]
    assert [each.code for each in ended] == [0, 0]


def test_a_number_of_all_ranks_leaves_each_node_what_its_environment_says() -> None:
    port, program = free_port(), ("sh", "-c", "echo $RANK $HVDLITE_HOSTNAME")
    both = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(port)}
    nodes = [start(("-np", "2", *program), {**both, "PET_NODE_RANK": str(rank)}) for rank in range(2)]
    with ending(*nodes):
        first, second = (each.rest() for each in nodes)
    assert (first.code, second.code) == (0, 0), first.err
    assert sorted(first.out.splitlines()) == [f"[0]<stdout>:0 {HERE}", f"[1]<stdout>:1 {HERE}#1"]


def test_ranks_do_not_meet_at_the_port_of_node_0() -> None:
    """An operator may have set one port under both names."""
    port = free_port()
    program = ("sh", "-c", "echo $MASTER_PORT")
    for number, is_own in ((port, False), (port - 1, True)):
        environ = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(number)}
        nodes = [node(rank, 2, port, *program, environ=environ) for rank in range(2)]
        with ending(*nodes):
            first, second = (each.rest() for each in nodes)
        assert (first.code, second.code) == (0, 0), first.err
        (found,) = {line.partition("<stdout>:")[2] for line in first.out.splitlines()}
        assert (found == str(number)) is is_own


def test_the_first_rank_that_fails_decides_the_code_of_every_node_and_one_box_says_so() -> None:
    first, *others = run("sh", "-c", "[ $RANK = 2 ] || exec sleep 600; echo the reason >&2; exit 7", count=3)
    assert first.code == 7
    assert f"rank 2 on {HERE}#2 ended with code 7" in first.err
    assert "|   the reason" in first.err
    for other in others:
        line = f"hvdrun: the job ended with code 7; what hvdrun wrote on node 0, {HERE}, says why\n"
        assert other == (7, "", line)


def test_output_files_and_folders_are_those_of_node_0(tmp_path: Path) -> None:
    ended = run("--output-filename", str(tmp_path), "sh", "-c", "echo of $RANK; pwd")
    assert [each.code for each in ended] == [0, 0]
    assert [(tmp_path / f"rank.{rank}/stdout").read_text() for rank in (0, 1)] == [
        f"of {rank}\n{os.getcwd()}\n" for rank in (0, 1)
    ]


def test_ranks_get_variables_from_both_nodes_and_the_key_of_their_job_instead_of_that_of_the_nodes() -> None:
    port = free_port()
    tell = python("import os; print(*(os.environ.get(name) for name in ('HVDLITE_SECRET', 'NAMED', 'THERE', 'HERE')))")
    nodes = [
        node(0, 2, port, "-x", "NAMED=one two", *tell, environ={"HERE": "0"}),
        node(1, 2, port, *tell, environ={"THERE": "1"}),
    ]
    with ending(*nodes):
        out = nodes[0].rest().out
    (_, key, *own), (_, same_key, *other) = (line.replace(":", " ").split(" ") for line in sorted(out.splitlines()))
    assert (own, other) == (["one", "two", "None", "0"], ["one", "two", "1", "None"])
    assert key == same_key != KEY


def test_nodes_of_one_machine_are_hosts_of_their_own_whose_ranks_train_together() -> None:
    """They may be containers that share the network of the machine, and each has GPUs from 0."""
    program = """
import os, hvdlite as hvd, numpy as np
hvd.init()
assert [hvd.local_rank(), hvd.local_size()] == [int(os.environ[f"LOCAL_{name}"]) for name in ("RANK", "WORLD_SIZE")]
print(hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.allreduce(np.ones(9), op=hvd.Sum)[0])
"""
    first, second = run("-ppn", "2", sys.executable, "-c", program)
    found = sorted(line.partition("<stdout>:")[2] for line in first.out.splitlines())
    assert found == ["0 0 0 4.0", "1 1 0 4.0", "2 0 1 4.0", "3 1 1 4.0"], first.err
    assert (first.code, second.code) == (0, 0)


def test_ranks_get_the_gpus_of_their_own_node_and_are_as_many_as_these_allow() -> None:
    port, program = free_port(), ("sh", "-c", "echo $RANK of $WORLD_SIZE: $CUDA_VISIBLE_DEVICES")
    gpus = {0: "4,5", 1: "0,1,2"}
    for options, expected in {
        ("-np", "auto", "-ppn", "8"): [f"{rank} of 5: {'4,5' if rank < 2 else '0,1,2'}" for rank in range(5)],
        ("--gpus-per-proc", "2", "-ppn", "8"): ["0 of 2: 4,5", "1 of 2: 0,1"],
    }.items():
        nodes = [
            node(rank, 2, port, *options, *program, environ={"CUDA_VISIBLE_DEVICES": gpus[rank]}) for rank in range(2)
        ]
        with ending(*nodes):
            first, second = (each.rest() for each in nodes)
        assert sorted(line.partition("<stdout>:")[2] for line in first.out.splitlines()) == expected, first.err
        assert (first.code, second.code) == (0, 0)


def test_stdin_of_node_0_reaches_the_rank_that_reads_it() -> None:
    port, data = free_port(), os.urandom(1 << 20)
    count = python("import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())")
    nodes = [node(rank, 2, port, "--stdin", "1", *count, stdin=subprocess.PIPE) for rank in range(2)]
    with ending(*nodes):
        out, err = nodes[0].communicate(data, timeout=PATIENCE_S)
    assert f"[1]<stdout>:{hashlib.sha256(data).hexdigest()}" in out.decode().splitlines(), err


def test_sync_copies_the_folder_of_node_0(tmp_path: Path) -> None:
    for name in ("here", "there", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "here/part.py").write_text("NAME = 'of node 0'\n")
    command = ("--sync", *python("import os, part; print(part.NAME, os.getcwd())"))
    port, environ = free_port(), {"HOME": str(tmp_path / "home"), "PYTHONPATH": f".:{ROOT}"}
    folders = [tmp_path / "here", tmp_path / "there"]
    nodes = [node(rank, 2, port, *command, environ=environ, cwd=folder) for rank, folder in enumerate(folders)]
    with ending(*nodes):
        first, second = (each.rest() for each in nodes)
    assert (first.code, second.code) == (0, 0), first.err
    (_, _, here), (_, _, there) = (line.split(":of ")[1].split() for line in sorted(first.out.splitlines()))
    assert here == str(tmp_path / "here")
    assert there.startswith(str(tmp_path / "home/.cache/hvdlite/sync"))


def test_the_key_may_be_in_a_file_and_is_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    words = ("--secret-file", str(tmp_path / "key"), "--verbose", *WAIT)
    with job(*words, environ={"HVDLITE_SECRET": "", "FOLDER": str(tmp_path)}) as nodes:
        ready(nodes[0])
        arguments = [word for process in psutil.process_iter() for word in process_arguments(process)]
        assert not any(KEY in word for word in arguments)
        nodes[0].send_signal(signal.SIGTERM)
        ended = [each.rest() for each in nodes]
    assert [each.code for each in ended] == [143, 143]
    assert not any(KEY in text for each in ended for text in (each.out, each.err))


def process_arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# ---- nodes that come late, or cannot come


def test_node_0_names_the_nodes_that_do_not_come_and_those_that_came_hear_of_it() -> None:
    port = free_port()
    nodes = [node(rank, 4, port, *SOON, "true") for rank in (0, 2)]
    with ending(*nodes):
        ended = [each.rest() for each in nodes]
    assert [each.code for each in ended] == [1, 1]
    missing = f"nodes 1, 3 of 4 did not come to port {port} within 2 s"
    assert missing in ended[0].err
    assert f"node 0 on {HERE} did not start the job: {missing}" in ended[1].err


def test_a_node_with_another_key_is_turned_away() -> None:
    port = free_port()
    nodes = [
        node(0, 2, port, *SOON, "true"),
        node(1, 2, port, *SOON, "true", environ={"HVDLITE_SECRET": secrets.token_hex(32)}),
    ]
    with ending(*nodes):
        first, second = (each.rest() for each in nodes)
    assert (first.code, second.code) == (1, 1)
    assert "node 1 of 2 did not come" in first.err
    assert re.search(r" \d+ call\(s\) from (127\.0\.0\.1|::1) did not have this key\. See ", first.err)
    assert "HVDLITE_SECRET has to be the same on all nodes" in second.err


def test_a_python_without_openssl_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['_hashlib'] = None\n")
    with ending(alone := node(0, 2, free_port(), "true", environ={"PYTHONPATH": str(tmp_path)})):
        code, _, err = alone.rest()
    assert code == 2
    assert "nodes talk to each other encrypted, but this Python has no OpenSSL" in err


@pytest.mark.parametrize("key", ["", "not a key"])
def test_without_a_key_of_the_right_form_no_node_starts(key: str) -> None:
    for rank in (0, 1):
        with ending(alone := node(rank, 2, free_port(), "true", environ={"HVDLITE_SECRET": key})):
            code, _, err = alone.rest()
        assert code == 2
        assert "64 hexadecimal digits" in err
        assert "openssl rand -hex 32" in err


def test_nodes_that_disagree_about_their_number_all_hear_of_it() -> None:
    port = free_port()
    nodes = [node(0, 2, port, "true"), node(1, 3, port, "true")]
    with ending(*nodes):
        ended = [each.rest() for each in nodes]
    for each in ended:
        assert each.code == 1
        assert "it was started with --nnodes 3, and node 0 with 2" in each.err


def test_a_node_for_which_there_is_no_rank_ends_the_job() -> None:
    for each in run("-np", "1", "true"):
        assert each.code == 2
        assert f"no rank runs on {HERE}#1: {HERE} can take all 1; start fewer nodes, or more ranks, or" in each.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--stdin", "7"), "--stdin 7: there is no such rank; the job has 2"),
        (("--output-filename", "/proc/nowhere"), "--output-filename /proc/nowhere cannot be used"),
    ],
)
def test_what_node_0_finds_wrong_once_all_have_come_ends_all_nodes_alike(options: tuple[str, ...], reason: str) -> None:
    first, second = run(*options, "true")
    assert (first.code, second.code) == (2, 2)
    assert reason in first.err
    assert f"node 0 on {HERE} did not start the job: {reason}" in second.err


def test_another_version_of_hvdlite_is_refused_on_all_nodes(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("from hvdlite import version\nversion.__version__ = '9.9.9'\n")
    port = free_port()
    nodes = [node(0, 2, port, "true"), node(1, 2, port, "true", environ={"PYTHONPATH": str(tmp_path)})]
    with ending(*nodes):
        ended = [each.rest() for each in nodes]
    for each in ended:
        assert each.code == 1
        assert "it has hvdlite 9.9.9" in each.err
        assert "install the same version on both" in each.err


def test_a_second_node_of_one_number_is_refused_and_the_job_goes_on() -> None:
    port = free_port()
    head, *twins = nodes = [node(rank, 3, port, "true") for rank in (0, 1, 1)]
    with ending(*nodes):
        gone = next_to_end(*twins)  # nobody knows which of the two comes first
        code, _, err = gone.rest()
        assert code == 1
        assert "is node 1 already; give each node a --node-rank of its own" in err
        (stays,) = (twin for twin in twins if twin is not gone)
        with ending(last := node(2, 3, port, "true")):
            assert [each.rest().code for each in (head, stays, last)] == [0, 0, 0]


def next_to_end(*nodes: Node) -> Node:
    """The first of ``nodes`` to end."""
    until(lambda: any(each.poll() is not None for each in nodes))
    return next(each for each in nodes if each.poll() is not None)


def test_a_node_that_is_started_again_while_the_others_wait_takes_its_place() -> None:
    port = free_port()
    with ending(head := node(0, 3, port, "true")), ending(early := node(1, 3, port, "true")):
        until(lambda: bool(psutil.Process(early.pid).children()))  # its agent, which it starts once it is let in
        early.kill()
        early.rest()
        with ending(again := node(1, 3, port, "true")), ending(last := node(2, 3, port, "true")):
            assert [each.rest().code for each in (head, again, last)] == [0, 0, 0]


def test_a_node_that_is_started_again_after_the_job_has_begun_is_refused(tmp_path: Path) -> None:
    port = free_port()
    nodes = [node(rank, 2, port, *WAIT, environ={"FOLDER": str(tmp_path)}) for rank in range(2)]
    with ending(*nodes):
        ready(nodes[0])
        with ending(again := node(1, 2, port, *WAIT)):
            code, _, err = again.rest()
        assert code == 1
        assert "the job has begun already, and no node can join it again; start it again on all nodes" in err
        nodes[0].send_signal(signal.SIGINT)
        assert [each.rest().code for each in nodes] == [130, 130]


def test_what_node_0_says_in_one_breath_is_not_lost() -> None:
    with in_place_of_node_0() as (channel, second):
        records = [
            channel.seal(Record.WELCOME, host="a"),
            channel.seal(Record.OVER, code=3, text="the reason"),
            channel.seal(Record.END, reason=""),
        ]
        channel.sock.sendall(b"".join(records))
        channel.sock.shutdown(socket.SHUT_WR)
        code, _, err = second.rest()
    assert (code, "node 0 on a did not start the job: the reason" in err) == (3, True), err
