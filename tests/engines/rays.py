"""Clusters of Ray on this machine: two nodes with addresses of their own, in a process that ends with the test."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hvdlite as hvd
from tests.engines.starting import ROOT
from tests.harness import leaks
from tests.harness.patience import PATIENCE_S

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is missing; 'make test-engines' installs it"
)
NODES = ("127.0.0.2", "127.0.0.3")  # not 127.0.0.1, which Ray replaces by this host's address
CPUS = 4
GPUS = 2  # a number that Ray counts with; there need not be any

# Without its usage report, its file with a token, and the threads of its libraries. Ray Train looks at workers often.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "OMP_NUM_THREADS": "1",
}


class RayCluster:
    """Two nodes at `NODES`. ``folder`` has everything that Ray writes."""

    def __init__(self, process: subprocess.Popen[str], folder: str) -> None:
        self._process = process
        self.folder = folder
        self.environment = {**_ENVIRONMENT, "RAY_ADDRESS": self.ask("start"), "PYTHONPATH": str(ROOT)}

    def ask(self, *words: str) -> str:
        """Has the cluster's process do something, and returns its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, Path(self.folder, "log").read_text()
        return str(json.loads(line))

    def add(self, address: str) -> None:
        """Adds a node."""
        self.ask("add", address)

    def remove(self, address: str) -> None:
        """Kills a node's processes."""
        self.ask("remove", address)

    def stop(self, address: str) -> None:
        """Stops a node's processes by SIGSTOP, as if the machine had hung."""
        self.ask("stop", address)

    def resume(self, address: str) -> None:
        """Has them run again."""
        self.ask("resume", address)

    def stored(self) -> str:
        """The tables that Ray keeps, and its files."""
        files = [path for path in Path(self.folder).rglob("*") if path.is_file()]
        return "\n".join([self.ask("tables"), *(path.read_text(errors="replace") for path in files)])


@contextmanager
def cluster() -> Iterator[RayCluster]:
    """A cluster, with all of its files in a folder of its own. Its paths are short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as folder:
        environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": str(ROOT), "HOME": folder, "RAY_TMPDIR": folder}
        os.mkdir(f"{folder}/ray")
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.rays", "nodes", f"{folder}/ray"],
                env=environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            with leaks.apart(process.pid):
                yield RayCluster(process, folder)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.wait()
                process.stdout.close()


def connect(**options: Any) -> None:
    """Makes this process a driver of the cluster that its environment names."""
    import ray

    ray.init(_node_ip_address=NODES[0], logging_level="warning", **options)


def in_driver(cluster: RayCluster, function: Callable[..., Any], *args: str) -> Any:
    """Calls ``function`` in a new process that is a driver; returns its result."""
    with driver(cluster, function, *args) as process:
        return result_of(process)


def result_of(process: subprocess.Popen[str]) -> Any:
    """What the function of a `driver` returns."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return json.loads(out)


@contextmanager
def driver(cluster: RayCluster, function: Callable[..., Any], *args: str) -> Iterator[subprocess.Popen[str]]:
    """A new process that calls ``function``, whose result is its stdout."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.rays", "call", function.__module__, function.__name__, *args],
        env={**os.environ, **cluster.environment},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def place() -> list[Any]:
    """Where this rank is, and an all-reduce."""
    hvd.init()
    total = hvd.allreduce(np.full(3000, hvd.rank() + 1.0), name="place", op=hvd.Sum)[-1]
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), float(total)]


def digest_of_key() -> str:
    return hashlib.sha256(os.environ["HVDLITE_SECRET"].encode()).hexdigest()


def executor(*args: Any, **kwargs: Any) -> Any:
    from hvdlite.ray import RayExecutor

    return RayExecutor(*args, **kwargs)


def call(module: str, name: str, *args: str) -> None:
    """Writes what a function returns to stdout, as a driver."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints as well
    connect(log_to_driver=False)
    answer.write(json.dumps(getattr(importlib.import_module(module), name)(*args)))
    answer.close()


def run_nodes(folder: str) -> None:
    """Runs a cluster for the process at the other end of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints as well
    from ray.cluster_utils import Cluster

    nodes = Cluster()

    def start() -> str:
        for address in NODES:
            add(address)
        return str(nodes.address)

    def add(address: str) -> str:
        nodes.add_node(
            num_cpus=CPUS,
            num_gpus=GPUS,
            node_ip_address=address,
            temp_dir=folder,
            include_dashboard=False,
            object_store_memory=80 << 20,
        )
        return ""

    def node_at(address: str) -> Any:
        (node,) = [node for node in nodes.list_all_nodes() if node.node_ip_address == address]
        return node

    def remove(address: str) -> str:
        nodes.remove_node(node_at(address), allow_graceful=False)
        return ""

    def send(address: str, signum: signal.Signals) -> str:
        """Signals Ray's processes of a node, and below them the workers."""
        for _, own in node_at(address).live_processes():
            with suppress(psutil.NoSuchProcess):
                for process in [own, *psutil.Process(own.pid).children(recursive=True)]:
                    process.send_signal(signum)
        return ""

    def tables() -> str:
        return _tables(nodes)

    commands: dict[str, Callable[..., str]] = {
        "start": start,
        "add": add,
        "remove": remove,
        "stop": lambda address: send(address, signal.SIGSTOP),
        "resume": lambda address: send(address, signal.SIGCONT),
        "tables": tables,
    }
    for line in sys.stdin:
        name, *words = json.loads(line)
        answers.write(json.dumps(commands[name](*words)) + "\n")
        answers.flush()
    nodes.shutdown()


def _tables(nodes: Any) -> str:
    """What Ray's control store keeps of jobs, actors, tasks, workers and placement groups, and its keys and values.

    Whole records, from which `ray list --detail` and the dashboard choose what they show.
    """
    from ray._raylet import GcsClient, GcsClientOptions, GlobalStateAccessor

    known = GlobalStateAccessor(GcsClientOptions.create(nodes.address, None, True, False))
    assert known.connect()
    records = [*known.get_job_table(), *known.get_actor_table(None, None), *known.get_task_events()]
    records += [*known.get_worker_table(), *known.get_placement_group_table()]
    store = GcsClient(address=nodes.address)
    spaces = [None, b"fun", b"cls", b"job", b"tracing", b"session", b"serve"]
    keys = [(key, space) for space in spaces for key in store.internal_kv_keys(b"", space)]
    values = [store.internal_kv_get(key, space) for key, space in keys]
    return "\n".join(map(str, [*records, *keys, *values]))


if __name__ == "__main__":
    {"call": call, "nodes": run_nodes}[sys.argv[1]](*sys.argv[2:])
