"""What callers of Dask's ranks do, one scenario after the other on one cluster: ``python dask_scenarios.py``.

Writes a line of JSON for each scenario: its name, and its error or "".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
from distributed import Client, Future, LocalCluster, Worker

import hvdlite as hvd
import hvdlite.dask
from hvdlite.errors import FunctionFailed, LaunchError, WorkerFailed
from tests.engines.dask_ranks import ranks
from tests.harness.patience import LAST_RESORTS, NEVER_SILENT, PATIENCE_S, PROMPT_S, until

WORKERS = 3
MEMORY = r"If nothing .* out of memory: see 'dmesg' .*\. Then call it again, from your last checkpoint$"
ENVIRONMENT = {**LAST_RESORTS, **NEVER_SILENT}
START_S = 4 * PATIENCE_S

Scenario = Callable[[LocalCluster, Client], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def call(client: Client, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    options = {"env": ENVIRONMENT, "start_timeout": START_S, **options}
    return hvdlite.dask.run(client, function, args, **options)


def addresses(client: Client) -> list[str]:
    return sorted(client.scheduler_info()["workers"])


# On the ranks.


def about(name: str) -> tuple[list[int], float, str]:
    hvd.init()
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    return place, float(hvd.allreduce(np.full(5000, hvd.rank() + 1.0), op=hvd.Sum)[-1]), os.environ[name]


def fails() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        raise OSError("the disk is full")
    hvd.allreduce(np.ones(10), name="never complete")


def is_killed() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(10), name="never complete")


def ends() -> None:
    hvd.init()
    os._exit(0)


def kills_worker() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    hvd.allreduce(np.ones(10), name="never complete")


def waits(marks: str) -> None:
    """Starts a child, and says so in a file of the folder ``marks``."""
    hvd.init()
    subprocess.Popen(["sleep", "1000"])
    Path(marks, str(hvd.rank())).touch()
    threading.Event().wait()


def sums_of_lambdas(add: Callable[[float], float]) -> float:
    hvd.init()
    return add(float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))


def tasks_of(client: Client) -> list[Future]:
    """The tasks of ranks, as another client that knows their names has them."""
    names = [name for tasks in client.processing().values() for name in tasks]
    return [Future(name, client=client) for name in names if name.startswith("hvdlite-")]


def are_there(folder: Path, count: int) -> bool:
    return len(list(folder.iterdir())) == count


# At the caller.


@scenario
def every_worker_is_a_rank_and_results_come_by_rank(cluster: LocalCluster, client: Client) -> None:
    for _ in range(2):
        assert call(client, about, "EXTRA", env={**ENVIRONMENT, "EXTRA": "mine"}) == [
            ([rank, 3, rank, 3, 0, 1], 6.0, "mine") for rank in range(3)
        ]


@scenario
def ranks_follow_the_ports_of_workers_that_are_named(cluster: LocalCluster, client: Client) -> None:
    there = addresses(client)

    def folder_of_worker() -> tuple[str, int]:
        hvd.init()
        return os.readlink(f"/proc/{os.getppid()}/cwd"), hvd.size()

    folders = client.run(os.getcwd)
    names = {address: worker["name"] for address, worker in client.scheduler_info()["workers"].items()}
    assert call(client, folder_of_worker, workers=[there[2], names[there[0]]]) == [
        (folders[there[0]], 2),
        (folders[there[2]], 2),
    ]
    assert call(client, sums_of_lambdas, lambda total: total + 0.5, workers=there[1:2]) == [1.5]


@scenario
def the_first_failure_is_raised_with_its_traceback(cluster: LocalCluster, client: Client) -> None:
    with pytest.raises(FunctionFailed) as failed:
        call(client, fails)
    assert failed.value.rank == 1
    assert failed.value.host == os.uname().nodename
    first, *_, last = failed.value.traceback.splitlines()[1:]
    assert first.endswith(", in fails")
    assert last == "OSError: the disk is full"


@scenario
def a_rank_that_was_killed_or_that_ends_is_named(cluster: LocalCluster, client: Client) -> None:
    with pytest.raises(WorkerFailed, match=rf"^rank 1 on \S+ was ended by SIGKILL\. {MEMORY}") as failed:
        call(client, is_killed)
    assert (failed.value.rank, failed.value.code) == (1, 137)
    with pytest.raises(WorkerFailed, match="ended without a result; the function must return"):
        call(client, ends)


@scenario
def a_worker_that_was_killed_is_named_and_the_next_job_waits_for_another(cluster: LocalCluster, client: Client) -> None:
    killed = addresses(client)[1]
    begun = time.monotonic()
    with pytest.raises(WorkerFailed, match=rf"^rank 1 on .*: its worker {killed} left Dask's cluster\. {MEMORY}"):
        call(client, kills_worker, num_proc=WORKERS)
    assert time.monotonic() < begun + PROMPT_S
    with TestCase().assertLogs("hvdlite", "INFO") as said:  # its nanny starts another
        assert [total for _, total, _ in call(client, about, "HOME", num_proc=WORKERS)] == [6.0] * 3
    assert killed not in addresses(client)
    assert said.output[0].startswith("INFO:hvdlite:3 rank(s) start on workers of Dask: tcp://")
    until(lambda: not ranks())


@scenario
def num_proc_takes_the_first_workers_by_port_or_counts_those_there(cluster: LocalCluster, client: Client) -> None:
    there = sorted(addresses(client), key=lambda address: int(address.rpartition(":")[2]))
    folders = client.run(os.getcwd)

    def folder_of_worker() -> str:
        hvd.init()
        return os.readlink(f"/proc/{os.getppid()}/cwd")

    assert call(client, folder_of_worker, num_proc=2) == [folders[each] for each in there[:2]]
    with pytest.raises(
        LaunchError, match=r"^5 ranks need as many workers, and Dask's cluster has 3 ready after 1 s; start more"
    ):
        call(client, about, "HOME", num_proc=5, start_timeout=1)
    assert not ranks()


@scenario
def ctrl_c_ends_the_ranks_and_their_children(cluster: LocalCluster, client: Client) -> None:
    folder = Path("interrupted")
    folder.mkdir()

    def interrupt() -> None:
        until(lambda: are_there(folder, 3))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call(client, waits, str(folder.resolve()))
    thread.join()
    assert not ranks()


@scenario
def a_task_that_another_client_cancels_ends_the_job(cluster: LocalCluster, client: Client) -> None:
    folder = Path("cancelled")
    folder.mkdir()

    def cancel() -> None:
        until(lambda: are_there(folder, 3))
        client.cancel([each for each in tasks_of(client) if "rank-1" in each.key], force=True)

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(WorkerFailed, match=r"^rank 1 on \S+ was ended: its task in Dask is cancelled$"):
        call(client, waits, str(folder.resolve()))
    thread.join()
    assert not ranks()


@scenario
def a_caller_that_is_gone_ends_the_job(cluster: LocalCluster, client: Client) -> None:
    folder = Path("gone")
    folder.mkdir()
    program = (
        "import sys; from distributed import Client; import hvdlite.dask; "
        "from tests.engines.dask_scenarios import waits, ENVIRONMENT; "
        "hvdlite.dask.run(Client(sys.argv[1]), waits, (sys.argv[2],), env=ENVIRONMENT)"
    )
    caller = subprocess.Popen([sys.executable, "-c", program, cluster.scheduler_address, str(folder.resolve())])
    until(lambda: are_there(folder, 3))
    caller.kill()
    caller.wait()
    until(lambda: not ranks())
    assert [total for _, total, _ in call(client, about, "HOME")] == [6.0] * 3


@scenario
def two_jobs_share_a_cluster(cluster: LocalCluster, client: Client) -> None:
    there = addresses(client)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call(client, about, "HOME", workers=there[:2])))
    thread.start()
    assert [total for _, total, _ in call(client, about, "HOME", workers=there[2:])] == [1.0]
    thread.join()
    assert [total for _, total, _ in found[0]] == [3.0] * 2


@scenario
def a_worker_that_is_busy_is_named(cluster: LocalCluster, client: Client) -> None:
    busy = addresses(client)[1]
    gate = Path("busy")
    os.mkfifo(gate)
    held = client.submit(gate.resolve().read_text, workers=[busy], pure=False)
    try:
        with pytest.raises(LaunchError, match=rf"^rank 1 on {busy} did not begin within 2 s: each rank needs a free"):
            call(client, about, "HOME", start_timeout=2)
        assert not ranks()
    finally:
        gate.write_text("")
    held.result()


@scenario
def wrong_arguments_are_refused_before_anything_runs(cluster: LocalCluster, client: Client) -> None:
    there = addresses(client)
    for options, words in (
        ({"workers": ["tcp://127.0.0.1:1"]}, "the cluster has no worker tcp://127.0.0.1:1; it has tcp://"),
        ({"workers": [there[0], there[0]]}, "a worker is named twice"),
        ({"workers": 2}, "workers must be a list of .* got 2; the number of ranks is num_proc"),
        ({"workers": there[0]}, f"workers must be a list of .* got '{there[0]}'; "),
        ({"workers": there, "num_proc": 3}, "num_proc and workers exclude each other"),
    ):
        with pytest.raises(ValueError, match=words):
            call(client, about, "HOME", **options)
    closed = Client(cluster, set_as_default=False)
    closed.close()
    with pytest.raises(ValueError, match="client is closed; make another one"):
        hvdlite.dask.run(closed, about)
    with pytest.raises(ValueError, match="the function or its arguments cannot be sent"):
        call(client, about, threading.Lock())
    with pytest.raises(ValueError, match="func must be a function, got int"):
        hvdlite.dask.run(client, 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"client must be a synchronous dask\.distributed\.Client, got LocalCluster"):
        hvdlite.dask.run(cluster, about)


@scenario
def a_worker_with_another_version_is_named(cluster: LocalCluster, client: Client) -> None:
    other = addresses(client)[1]

    def set_version(version: str) -> str:
        from hvdlite.dask import task

        before, task.__version__ = task.__version__, version  # type: ignore[attr-defined]
        return before

    before = client.run(set_version, "0.0", workers=[other])[other]
    with pytest.raises(LaunchError, match=rf"^the worker {other} needs hvdlite {before}, and has 0\.0; install the"):
        call(client, about, "HOME")
    client.run(set_version, before, workers=[other])


@scenario
def nothing_that_dask_shows_has_the_key(cluster: LocalCluster, client: Client) -> None:
    folder = Path("key")
    folder.mkdir()
    shown: list[str] = []
    keys: list[str] = []

    def look() -> None:
        until(lambda: are_there(folder, 3))
        keys.extend(client.run(key_of_rank).values())
        shown.extend(str(each) for each in (client.processing(), client.scheduler_info(), client.get_events()))
        shown.extend(" ".join(process.cmdline()) for process in ranks())
        client.cancel(tasks_of(client), force=True)

    def key_of_rank(dask_worker: Worker) -> str:
        return str([run.args[2] for run in [task.run_spec for task in dask_worker.state.tasks.values()] if run])

    thread = threading.Thread(target=look)
    thread.start()
    with pytest.raises(WorkerFailed):
        call(client, waits, str(folder.resolve()))
    thread.join()
    assert len(keys) == 3
    assert "Job(name=" in keys[0]
    assert "secret" not in "".join(keys)


@scenario
def workers_may_be_threads_of_the_caller(cluster: LocalCluster, client: Client) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as threads,
        Client(threads, set_as_default=False) as other,
    ):
        assert [total for _, total, _ in call(other, about, "HOME")] == [3.0] * 2


@scenario
def a_worker_that_is_retired_ends_its_rank(cluster: LocalCluster, client: Client) -> None:
    folder = Path("retired")
    folder.mkdir()
    leaving = addresses(client)[2]

    def retire() -> None:
        until(lambda: are_there(folder, 3))
        client.retire_workers([leaving])

    thread = threading.Thread(target=retire)
    thread.start()
    with pytest.raises(WorkerFailed, match=f"rank 2 on .*(its worker {leaving} left|was ended by SIGTERM)"):
        call(client, waits, str(folder.resolve()))
    thread.join()
    assert not ranks()


@scenario
def a_scheduler_that_ends_ends_the_job(cluster: LocalCluster, client: Client) -> None:
    folder = Path("scheduler")
    folder.mkdir()
    left = len(addresses(client))

    def close() -> None:
        until(lambda: are_there(folder, left))
        cluster.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(LaunchError):
        call(client, waits, str(folder.resolve()))
    thread.join()
    until(lambda: not ranks())


def main() -> None:
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for name, function in SCENARIOS.items():
            error, begun = "", time.monotonic()
            try:
                function(cluster, client)
            except BaseException:
                error = traceback.format_exc()
            print(json.dumps({"name": name, "error": error, "seconds": time.monotonic() - begun}), flush=True)


if __name__ == "__main__":
    main()
