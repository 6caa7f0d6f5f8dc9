"""The faults really act, and are gone afterwards."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import cgroups, faults
from tests.harness.clocks import WallClock
from tests.harness.hosts import Host, HostProcess, Network
from tests.harness.patience import PATIENCE_S
from tests.harness.wan import bad_line

PORT = 5000
TALK = (sys.executable, "-I", "-S", str(Path(__file__).with_name("talk.py")))


@pytest.fixture
def served(network: Network) -> Iterator[Network]:
    """Hosts a, b and c while b and c echo."""
    serve = (*TALK, "serve", str(PORT))
    with network["b"].popen(*serve) as one, network["c"].popen(*serve) as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield network


def asked(host: Host, peer: Host, count: int = 1, length: int = 8, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    ended = host.run(*TALK, "ask", peer.address, str(PORT), str(count), str(length), str(patience_s))
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_a_cut_reaches_only_its_hosts_and_heals(served: Network) -> None:
    a, b, c = (served[name] for name in "abc")
    with faults.cut(a, b):
        assert asked(a, b, patience_s=0.5)["error"] == "timed out"
        assert asked(a, c)["error"] == ""
    assert asked(a, b)["error"] == ""


def test_a_cut_of_ports_leaves_the_others(served: Network) -> None:
    a, b = served["a"], served["b"]
    with faults.cut(a, b, faults.on_port(22)):
        assert a.run("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=1", "b", "true").returncode == 255
        assert asked(a, b)["error"] == ""
    with faults.cut(a, b, faults.on_port(PORT)):
        assert asked(a, b, patience_s=0.5)["error"] == "timed out"
    with faults.cut(a, b, faults.BESIDES_SSH):
        assert a.run("ssh", "-o", "BatchMode=yes", "b", "true").returncode == 0
        assert asked(a, b, patience_s=0.5)["error"] == "timed out"


def test_drop_is_one_way(served: Network) -> None:
    # The peer's kernel gets the request and its answers are lost: it has a connection that the asker does not have.
    a, b = served["a"], served["b"]
    with faults.drop(a, source=b):
        assert asked(a, b, patience_s=0.5)["error"] == "timed out"
        assert f":{PORT}" in b.check("ss", "-Htn", "state", "syn-recv")
    with faults.drop(b, source=a):
        assert asked(a, b, patience_s=0.5)["error"] == "timed out"


def test_a_partition_cuts_between_the_sides_only(served: Network) -> None:
    with faults.partition(served, "a", "bc"):
        assert asked(served["a"], served["b"], patience_s=0.5)["error"] == "timed out"
        assert asked(served["a"], served["c"], patience_s=0.5)["error"] == "timed out"
        assert asked(served["b"], served["c"])["error"] == ""


def test_losses_cost_time_and_no_byte(served: Network) -> None:
    with faults.lose(served["b"], percent=20):
        answer = asked(served["a"], served["b"], count=40, length=4000)
    assert (answer["altered"], answer["error"]) == (0, "")
    assert max(answer["seconds"]) > 10 * statistics.median(answer["seconds"])


def test_corruption_passes_tcp_unnoticed(served: Network) -> None:
    with faults.corrupt(served["b"], source=served["a"], every=10):
        answer = asked(served["a"], served["b"], count=100, length=1000)
    assert answer["error"] == ""
    assert answer["altered"] == 10


def test_reset_ends_connections_at_once(served: Network) -> None:
    with faults.reset(served["b"], str(PORT)):
        assert asked(served["a"], served["b"])["error"] == "Connection refused"
    assert asked(served["a"], served["b"])["error"] == ""


def test_kill_sockets_ends_the_connections_of_a_port(served: Network) -> None:
    a, b = served["a"], served["b"]
    with a.popen(*TALK, "ask", b.address, str(PORT), "1000000000", "8", "5.0") as asker:
        while not faults.kill_sockets(a, f"dport = {PORT}"):
            assert asker.poll() is None
        out, _ = asker.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["error"] in ("Software caused connection abort", "Connection reset by peer")


@pytest.mark.parametrize("kind", ["interface", "cable"])
def test_a_link_that_is_down_comes_up_again(served: Network, kind: str) -> None:
    a, b = served["a"], served["b"]
    fault = faults.link_down(b) if kind == "interface" else faults.unplugged(served, "b")
    with fault:
        assert asked(a, b, patience_s=0.5)["error"] in ("timed out", "No route to host")
    assert asked(a, b)["error"] == ""


def test_a_bad_line_delays_loses_and_doubles(served: Network) -> None:
    a, b = served["a"], served["b"]
    with bad_line(a, b, delay_ms=10.0, jitter_ms=4.0, loss=0.02, duplication=0.01):
        answer = asked(a, b, count=40, length=2000)
    assert (answer["altered"], answer["error"]) == (0, "")
    delayed_s = statistics.median(answer["seconds"])
    assert delayed_s > 0.020
    assert statistics.median(asked(a, b, count=20)["seconds"]) < delayed_s


def counting(host: Host) -> HostProcess:
    program = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.01)"
    return host.popen(sys.executable, "-I", "-S", "-c", program)


def test_frozen_processes_make_a_gap(network: Network) -> None:
    skip_without("freezer")
    with counting(network["a"]) as process:
        assert process.stdout is not None
        times = [float(process.stdout.readline())]
        with cgroups.frozen([process.inner]):
            time.sleep(0.5)
            thawed_at = time.monotonic()
        while times[-1] < thawed_at:
            times.append(float(process.stdout.readline()))
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) > 0.4


def test_stopped_processes_go_on(network: Network) -> None:
    with counting(network["a"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.inner.suspend()
        deadline = time.monotonic() + PATIENCE_S
        while process.inner.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
            os.sched_yield()
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline()


# Says that it is there and goes on when it is told to.
WAIT = "import signal, time\nsignal.pthread_sigmask(0, [10])\nprint(flush=True)\nsignal.sigwait([10])\n"


def waiting(host: Host, then: str) -> HostProcess:
    process = host.popen(sys.executable, "-I", "-S", "-c", WAIT + then)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_starved_processes_get_their_share(network: Network) -> None:
    skip_without("cpu")
    then = "begun = time.monotonic()\nwhile time.monotonic() < begun + 1: pass\nprint(time.process_time())"
    with waiting(network["a"], then) as process, cgroups.starved([process.inner], percent=10):
        process.send_signal(signal.SIGUSR1)
        assert process.stdout is not None
        assert float(process.stdout.readline()) < 0.4


@pytest.mark.alone  # beside it, hvdrun would take ranks that are killed for such
def test_a_process_short_of_memory_is_killed(network: Network) -> None:
    skip_without("memory")
    with (
        waiting(network["a"], "b'x' * (256 << 20)") as process,
        cgroups.short_of_memory([process.inner], more_bytes=64 << 20),
    ):
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL


def skip_without(controller: str) -> None:
    if reason := cgroups.missing(controller):
        pytest.skip(reason)


def test_covered_hidden_and_small_places_are_one_host_s(network: Network, tmp_path: Path) -> None:
    a, b = network["a"], network["b"]
    (tmp_path / "file").write_text("usual")
    with faults.cover(b, tmp_path / "file", "other"):
        assert (a.check("cat", str(tmp_path / "file")), b.check("cat", str(tmp_path / "file"))) == ("usual", "other")
    assert b.check("cat", str(tmp_path / "file")) == "usual"
    with faults.hide(b, tmp_path):
        assert (a.check("ls", str(tmp_path)), b.check("ls", str(tmp_path))) == ("file\n", "")
    with faults.small_disk(b, Path("/dev/shm"), "64k"):
        ended = b.run("dd", "if=/dev/zero", "of=/dev/shm/x", "bs=128k", "count=1")
        assert (ended.returncode, "No space left" in ended.stderr) == (1, True)


def test_a_wrong_clock_is_wrong_and_jumps(network: Network, tmp_path: Path) -> None:
    clock = WallClock(tmp_path, shift_s=3600)
    program = "import time; print(int(time.time()), time.monotonic())"
    for shift_s in (3600, -90):
        clock.set(shift_s)
        for command in (("date", "+%s 0"), (sys.executable, "-I", "-S", "-c", program)):
            wall, monotonic = network["a"].run(*command, env=clock.environment).stdout.split()
            assert abs(int(wall) - shift_s - time.time()) < 10.0
            assert float(monotonic) == 0.0 or abs(float(monotonic) - time.monotonic()) < 10.0
