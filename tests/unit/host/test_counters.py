"""What the kernel counted of a process and its host, read from recorded trees, and from this system."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import Popen

import pytest

from hvdlite.host.counters import HostCounters, ProcessCounters, processors_of, steal_of

STAT = "42 (a (rank) x) {state} 1 42 42 0 -1 4 {minor} 7 {major} 0 {user} {system} 3 4 20 0 9 0 0 0 0 {zeros} {cpu} 0"


def recorded(root: Path, **files: str) -> None:
    """Writes files; in their names ``__`` stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stat(state: str = "R", minor: int = 0, major: int = 0, user: int = 0, system: int = 0, cpu: int = 0) -> str:
    zeros = " ".join(["0"] * 14)
    return STAT.format(state=state, minor=minor, major=major, user=user, system=system, zeros=zeros, cpu=cpu)


def test_the_sums_of_a_process(tmp_path: Path) -> None:
    recorded(
        tmp_path,
        proc__42__stat=stat("T", minor=1000, major=5, user=300, system=200, cpu=7),
        proc__42__task__42__schedstat="2500000000 1500000000 77\n",
    )
    counters = ProcessCounters(42, tmp_path)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert counters.read() == {
        "cpu_s": pytest.approx(500 * tick),
        "system_s": pytest.approx(200 * tick),
        "minor_faults": 1000,
        "major_faults": 5,
        "is_stopped": True,
        "processor": 7,
        "run_s": pytest.approx(2.5),
        "delay_s": pytest.approx(1.5),
        "slices": 77,
    }
    counters.close()
    assert counters.read() == {}


@pytest.mark.parametrize("version", [1, 2])
def test_the_sums_of_control_groups_are_counted_all_the_way_up(tmp_path: Path, version: int) -> None:
    groups = tmp_path / "sys" / "fs" / "cgroup"
    recorded(
        tmp_path, proc__42__stat=stat(), proc__42__cgroup="0::/a/b\n" if version == 2 else "1:cpu:/a/b\n2:memory:/a\n"
    )
    cpu = groups if version == 2 else groups / "cpu"
    memory = groups if version == 2 else groups / "memory"

    def write(times: int) -> None:
        for folder in (cpu / "a", cpu / "a" / "b"):
            time = f"throttled_usec {times * 100_000}" if version == 2 else f"throttled_time {times * 100_000_000}"
            recorded(folder, **{"cpu.stat": f"nr_periods 9\nnr_throttled {times}\n{time}\n"})
        if version == 2:
            recorded(memory / "a" / "b", **{"memory.events.local": f"low 0\nhigh {times}\nmax {times}\noom 0\n"})
            some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={times * 250_000}\n"
            recorded(
                memory / "a" / "b", **{"memory.pressure": f"{some}full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"}
            )
        else:
            recorded(memory / "a", **{"memory.failcnt": f"{2 * times}\n"})

    write(3)
    counters = ProcessCounters(42, tmp_path)
    write(13)
    sums = counters.read()
    assert sums["throttles"] == 20
    assert sums["throttled_s"] == pytest.approx(2.0)
    assert sums["reclaims"] == 20
    assert sums.get("memory_s", 2.5) == pytest.approx(2.5)
    recorded(tmp_path, proc__42__cgroup="0::/\n" if version == 2 else "1:cpu:/\n2:memory:/\n")
    assert counters.read()["throttles"] == 20
    write(99)
    assert counters.read()["throttles"] == 20  # not those of groups that it has left
    counters.close()


def test_the_sums_of_a_host(tmp_path: Path) -> None:
    recorded(
        tmp_path,
        proc__stat="cpu  1 2 3 4 5 6 7 800 0 0\ncpu0 1 2 3 4 5 6 7 200 0 0\ncpu1 1 2 3 4 5 6 7 600 0 0\nintr 1 2\n",
        proc__vmstat="nr_free_pages 5\npswpin 12\npswpout 30\n",
        proc__net__snmp="Ip: Forwarding\nIp: 1\nTcp: ActiveOpens RetransSegs InErrs\nTcp: 1 51 0\n",
        proc__net__netstat="TcpExt: Sent TCPTimeouts TCPLossProbes\nTcpExt: 0 6 4\nIpExt: InOctets\nIpExt: 1\n",
        sys__devices__system__cpu__cpu1__cpufreq__cpuinfo_max_freq="3000000\n",
        sys__devices__system__cpu__cpu1__cpufreq__scaling_cur_freq="1200000\n",
    )
    counters = HostCounters(tmp_path)
    sums = counters.read()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert (sums["swapped_in"], sums["timeouts"], sums["resent"]) == (12, 10, 51)
    assert steal_of(sums, {1}) == pytest.approx(600 * tick)
    assert steal_of(sums, {0, 1}) == pytest.approx(400 * tick)
    assert steal_of(sums, {5}) is None
    assert counters.slowness(1) == pytest.approx(0.6)
    assert counters.slowness(0) is None
    counters.close()


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    host, process = HostCounters(tmp_path), ProcessCounters(42, tmp_path)
    assert host.read() == {}
    assert process.read() == {}


def test_this_process_and_its_host() -> None:
    host, process = HostCounters(), ProcessCounters(os.getpid())
    before, faults = process.read(), 4096
    touched = bytearray(faults * os.sysconf("SC_PAGE_SIZE"))
    after = process.read()
    assert {"cpu_s", "minor_faults", "run_s", "delay_s", "slices"} <= after.keys()
    assert after["run_s"] > before["run_s"]
    assert len(touched) == faults * os.sysconf("SC_PAGE_SIZE")
    assert all(after[name] >= before[name] for name in ("cpu_s", "minor_faults", "delay_s", "slices"))
    assert {"swapped_in", "timeouts", "resent", "steal_s.0"} <= host.read().keys()
    host.close()
    process.close()


def test_a_look_takes_few_calls_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """At files: three at a process, and two at most at each of its control groups; four at a host."""
    host, process = HostCounters(), ProcessCounters(os.getpid())
    calls = []
    original = os.pread

    def counted(descriptor: int, count: int, at: int) -> bytes:
        calls.append(at)
        return original(descriptor, count, at)

    monkeypatch.setattr(os, "pread", counted)
    process.read()
    assert 3 <= len(calls) <= 3 + 2 * 16  # groups up to the top
    calls.clear()
    host.read()
    assert calls.count(0) == 4
    host.close()
    process.close()


def test_the_processors_of_a_process_until_it_has_ended() -> None:
    one = min(os.sched_getaffinity(0))
    with Popen(["sleep", "600"]) as child:
        os.sched_setaffinity(child.pid, {one})
        assert processors_of(child.pid) == {one}
        child.kill()
    assert processors_of(child.pid) == frozenset()
