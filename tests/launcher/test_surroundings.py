"""Messages of ranks and hvdrun where a basic facility of the system is missing, or ranks cannot reach each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.harness.patience import LAST_RESORTS, PATIENCE_S
from tests.harness.users import needs_root
from tests.launcher.hvdrun import COMMAND

SUM = "import hvdlite as hvd, numpy as np; hvd.init(); print('sum', hvd.allreduce(np.ones(1), op=hvd.Sum)[0])"
ENVIRONMENT = {**os.environ, **LAST_RESORTS}  # ranks wait for each other longer than a test does

IN_A_RANK = {
    "another network namespace": (
        '[ $HVDLITE_RANK = 0 ] && exec "$@"; exec unshare --net "$@"',
        "rank 1 found no listener at unix://@hvdlite-",
        "start all ranks of a host in one network namespace",
    ),
    "no /proc": (
        'exec unshare --mount sh -c "mount -t tmpfs none /proc; exec \\"\\$@\\"" sh "$@"',
        "cannot tell which ranks share a host: this process sees no /proc",
        "mount -t proc proc /proc",
    ),
    "few descriptors": (
        'ulimit -n 12; exec "$@"',
        "this process can open only",
        "Raise the limit: ulimit -n 65536",
    ),
}


def hvdrun(*command: str, around: str = 'exec "$@"') -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", around, "sh", *COMMAND, "-np", "2", *command],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("what", IN_A_RANK)
@needs_root
def test_a_rank_says_at_once_what_it_lacks(what: str) -> None:
    around, *told = IN_A_RANK[what]
    ended = hvdrun("sh", "-c", around, "sh", sys.executable, "-c", SUM)
    assert ended.returncode == 1
    last = [line for line in ended.stderr.splitlines() if "HorovodInternalError: " in line]
    assert last, ended.stderr
    for text in told:
        assert text in last[0]


@needs_root
def test_ranks_need_no_dev_null() -> None:
    ended = hvdrun(
        "unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev; exec "$@"', "sh", sys.executable, "-c", SUM
    )
    assert ended.stdout.count("sum 2.0") == 2, ended.stderr


@pytest.mark.parametrize("around", ["unshare --user --map-root-user", "unshare --user"])
@needs_root
def test_a_rank_in_a_user_namespace_of_its_own_is_of_the_job(around: str) -> None:
    """Mapped to another number than outside, or not mapped at all: the kernel knows both sides for one user."""
    in_rank_1 = f'[ $HVDLITE_RANK = 0 ] && exec "$@"; exec {around} "$@"'
    ended = hvdrun("sh", "-c", in_rank_1, "sh", sys.executable, "-c", SUM)
    assert ended.stdout.count("sum 2.0") == 2, ended.stderr


@needs_root
def test_ranks_that_only_their_user_would_admit_need_one_that_the_kernel_tells_from_others() -> None:
    settings = {"HVDLITE_JOB": f"unmapped {os.getpid()}", "HVDLITE_SIZE": "2", "HVDLITE_LOCAL_SIZE": "2"}
    ended = subprocess.run(
        ["unshare", "--user", sys.executable, "-c", SUM],
        env={**ENVIRONMENT, **settings, "HVDLITE_RANK": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "rank 0 runs as a user that its user namespace does not map" in ended.stderr


IN_HVDRUN = {
    "no /dev/null": ('exec unshare --mount sh -c "mount -t tmpfs none /dev; exec \\"\\$@\\"" sh "$@"', ": /dev/null"),
    "6 descriptors": ('ulimit -n 6; exec "$@"', "Too many open files; raise the limit with ulimit -n"),
    "14 descriptors": ('ulimit -n 14; exec "$@"', "Too many open files; raise the limit"),
}


@pytest.mark.parametrize("what", IN_HVDRUN)
@needs_root
def test_hvdrun_says_in_one_line_what_it_lacks(what: str) -> None:
    around, told = IN_HVDRUN[what]
    ended = hvdrun("true", around=around)
    assert ended.returncode == 1
    lines = [line for line in ended.stderr.splitlines() if line.strip("+-")]
    assert len(lines) == 1, ended.stderr
    assert told in lines[0]


@needs_root
def test_ranks_of_an_engine_in_two_network_namespaces_are_told_at_once() -> None:
    """Rank 0 listens in one, and rank 1 sees that and cannot call."""
    settings = {"HVDLITE_JOB": f"apart {os.getpid()}", "HVDLITE_SIZE": "2", "HVDLITE_LOCAL_SIZE": "2"}
    first, second = (
        subprocess.Popen(
            [*words, sys.executable, "-c", SUM],
            env={**ENVIRONMENT, **settings, "HVDLITE_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, words in enumerate(((), ("unshare", "--net")))
    )
    try:
        _, told = second.communicate(timeout=PATIENCE_S)
    finally:
        first.kill()
        first.communicate()
    assert "rank 1 is in another network namespace than rank 0" in told
