"""Properties of a process, as Linux shows them."""

from __future__ import annotations

import os
import signal
from subprocess import PIPE, Popen

import pytest

from hvdlite.host.proc import command_of, descendants_of, has_signal, is_below, memory, memory_of, stat_of, status_of


def test_parent_and_state_of_a_process_whose_name_looks_like_them() -> None:
    with Popen(["bash", "-c", "printf ') T 1 (' > /proc/$$/comm; echo; read"], stdin=PIPE, stdout=PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert stat_of(child.pid).parent == os.getpid()
            assert stat_of(child.pid).state != "T"
            stat = stat_of(child.pid)
            assert (stat.name, stat.group, stat.session) == (") T 1 (", os.getpgrp(), os.getsid(0))
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert stat_of(child.pid).state == "T"
        finally:
            child.kill()
    with pytest.raises(OSError, match=str(child.pid)):
        stat_of(child.pid)


def test_memory_is_in_bytes() -> None:
    assert memory().total == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.01)
    assert 0 < memory().available < memory().total


def test_the_tree_of_processes() -> None:
    with Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=PIPE) as child:
        try:
            assert child.stdout is not None
            grandchild = int(child.stdout.readline())
            assert descendants_of(child.pid) == [grandchild]
            assert is_below(grandchild, os.getpid())
            assert not is_below(os.getpid(), grandchild)
            assert command_of(child.pid).startswith("sh -c sleep 600")
        finally:
            os.kill(grandchild, signal.SIGKILL)
    assert (descendants_of(child.pid), is_below(child.pid, os.getpid()), command_of(child.pid)) == ([], False, "")
    with pytest.raises(ProcessLookupError, match=str(child.pid)):
        memory_of(child.pid)


def test_signals_that_a_process_ignores() -> None:
    with Popen(["sh", "-c", "trap '' USR1; echo; read _"], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        status = status_of(child.pid)
        assert status_of(child.pid, child.pid)["SigIgn"] == status["SigIgn"]
        assert [has_signal(status, "SigIgn", signum) for signum in (signal.SIGUSR1, signal.SIGUSR2)] == [True, False]
        assert 1 << 12 <= memory_of(child.pid) < 1 << 26
        child.kill()
    assert status_of(child.pid) == {}
