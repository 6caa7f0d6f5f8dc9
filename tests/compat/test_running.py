"""`hvdlite.run`: results in rank order, and which error for which failure, with nothing left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvdlite.errors import BadHostSpec, FunctionFailed, LaunchError, WorkerFailed
from hvdlite.running import run
from hvdlite.running.launch import in_words_of_run
from tests.compat import calls
from tests.harness.patience import PATIENCE_S
from tests.house.tree import ROOT
from tests.launcher.hvdrun import read_until, still_alive


def test_results_come_in_rank_order() -> None:
    assert run(calls.add_up, [1.0], {"factor": 2.0}, np=3) == [(0, 3, 12.0), (1, 3, 12.0), (2, 3, 12.0)]


def test_large_results_arrive() -> None:
    assert [(len(array), array[0], array[-1]) for array in run(calls.large, np=2)] == [
        (1_000_000, 0.0, 0.0),
        (1_000_000, 1.0, 1.0),
    ]


def test_one_worker_is_the_default_and_gets_variables_on_top_of_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_INHERITED", "a")
    (found,) = run(calls.where, env={"TEST_GIVEN": "b", "HVDLITE_SHM_SLOTS": "3"}, start_timeout=7)
    assert (found["TEST_INHERITED"], found["TEST_GIVEN"], found["HVDLITE_SHM_SLOTS"]) == ("a", "b", "3")
    assert found["HVDLITE_START_TIMEOUT"] == "7"
    assert len({found["HVDLITE_SECRET"], found["HVDLITE_RUN_SECRET"]}) == 2


def test_a_thread_may_call_it_and_so_may_a_worker() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(run(calls.nest, np=2)))
    thread.start()
    thread.join(PATIENCE_S)
    assert results == [[(0, 1, 1.0)]] * 2


def test_what_ranks_print_is_shown(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(print, ("hello",), np=2, output_filename=str(tmp_path))
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]
    assert (tmp_path / "rank.1/stdout").read_text() == "hello\n"


def test_an_error_of_the_function_is_told_with_rank_and_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FunctionFailed, match=r"failed on rank 1 on localhost") as caught:
        run(calls.on_rank_one, ("raise",), np=2)
    assert (caught.value.rank, caught.value.host) == (1, "localhost")
    assert 'raise KeyError("no such thing")' in caught.value.traceback
    assert caught.value.traceback in str(caught.value) + "\n"
    assert "worker.py" not in caught.value.traceback
    assert capfd.readouterr() == ("", "")


def test_a_script_shows_an_error_of_the_function_once_beside_what_the_rank_printed(tmp_path: Path) -> None:
    call = f"hvdlite.run(calls.on_rank_one, ('raise',), np=2, output_filename={str(tmp_path)!r})"
    program = f"import hvdlite; from tests.compat import calls; {call}"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    own = "\n".join(line for line in ended.stderr.splitlines() if not line.startswith("[1]<stderr>:"))
    assert own.count("KeyError: 'no such thing'") == 1
    assert own.count("Traceback") == 2
    assert "hvdlite/running" not in own
    assert "KeyError" in (tmp_path / "rank.1/stderr").read_text()


@pytest.mark.parametrize(("how", "code"), [("kill", 137), ("3", 3)])
def test_a_rank_that_ends_is_told_with_its_code(how: str, code: int) -> None:
    with pytest.raises(WorkerFailed, match=f"rank 1 on localhost ended with code {code}") as caught:
        run(calls.on_rank_one, (how,), np=2)
    assert (caught.value.rank, caught.value.code) == (1, code)


def test_a_rank_that_leaves_without_a_result_is_named() -> None:
    with pytest.raises(LaunchError, match=r"rank\(s\) 0 ended without a result"):
        run(calls.leave)


def test_a_result_that_cannot_travel_is_named() -> None:
    with pytest.raises(FunctionFailed, match=r"the result of rank \d, a \w+, cannot be sent to another process"):
        run(calls.endless_numbers, np=2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(np=0), ValueError, r"at least 1 \(auto is for hvdrun\); got 0"),
        (dict(np="auto"), ValueError, "got 'auto'"),
        (dict(np=2.0), ValueError, "got 2.0"),
        (dict(np=2, hosts="localhost:1"), BadHostSpec, "2 ranks do not fit into the 1 slots"),
        (dict(np=1, hosts="-oProxyCommand=x"), BadHostSpec, "^hosts: .* is not a host"),
        (dict(hosts="localhost:1", hostfile="hosts"), ValueError, "exclude each other"),
        (dict(hostfile="missing"), BadHostSpec, "missing cannot be read"),
        (dict(env={"HVDLITE_PLANE": "fast"}), ValueError, "HVDLITE_PLANE='fast' must be one of"),
        (dict(start_timeout=-1), ValueError, "start_timeout"),
        (dict(args=(threading.Lock(),)), ValueError, "the function or its arguments cannot be sent"),
    ],
)
def test_what_cannot_be_started(
    arguments: dict[str, Any], error: type[Exception], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=message):
        run(calls.where, **arguments)
    assert capfd.readouterr() == ("", "")


def test_advice_names_what_run_has() -> None:
    text = "there is no folder /x; use --sync, --network-interface eth1, or hvdrun --check-build -np 2"
    expected = "there is no folder /x; use hvdrun's --sync, network_interfaces eth1, or hvdrun --check-build np 2"
    assert in_words_of_run(text) == expected


def test_func_must_be_callable() -> None:
    with pytest.raises(ValueError, match="func must be a function, got int"):
        run(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_caller_is_the_end_of_its_ranks(signum: int) -> None:
    program = "from tests.compat import calls; calls.run(calls.wait_for_ever, np=2)"
    caller = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert caller.stdout is not None
    try:
        shown = read_until(caller.stdout.fileno(), lambda found: found.count(b">\n") == 2)
        workers = dict(re.findall(r"<(\d+) (\w{64})>\n", shown.decode()))
        family = psutil.Process(caller.pid).children(recursive=True)
        assert {int(pid) for pid in workers} <= {member.pid for member in family}
        assert not [member for member in family if set(workers.values()) & set(" ".join(member.cmdline()).split())]
        caller.send_signal(signum)
        assert still_alive([member.pid for member in family], PATIENCE_S) == []
        errors = caller.communicate(timeout=PATIENCE_S)[1]
    finally:
        caller.kill()
        caller.communicate()
    assert caller.returncode == -signum
    assert (b"KeyboardInterrupt" in errors) == (signum == signal.SIGINT)


def test_a_script_without_a_guard_is_told_so_and_starts_nothing_more(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text("import hvdlite\ndef f():\n    return 1\nprint(hvdlite.run(f))\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert 'put the call under if __name__ == "__main__":' in ended.stderr


def test_a_function_under_the_guard_is_told_where_to_go(tmp_path: Path) -> None:
    script = tmp_path / "guarded.py"
    script.write_text(
        "import hvdlite\nif __name__ == '__main__':\n    def train():\n        return 1\n    hvdlite.run(train)\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    told = re.search(r"on localhost:\n\n(ValueError: Can't get attribute 'train' on .*)\n$", ended.stderr)
    assert told, ended.stderr
    assert "the top level of a module or script" in told[1]
    assert ended.stderr.count("File ") == 1, ended.stderr
