"""Ranks in Spark's executors on two hosts: their places and addresses, and a host that is out of reach."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.engines.spark import Home, needs_spark
from tests.engines.starting import ROOT
from tests.harness.hosts import Host, HostProcess, Network
from tests.harness.patience import LAST_RESORTS, PATIENCE_S, PROMPT_S, until

pytestmark = needs_spark


@contextmanager
def running(host: Host, log: Path, environ: Mapping[str, str], *command: str) -> Iterator[HostProcess]:
    """Runs ``command`` on the host, with its output in a file, and kills it at the end."""
    script = f'exec "$@" > {log} 2>&1'
    with host.popen("sh", "-c", script, "sh", *command, env=environ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(PROMPT_S)


def daemon(name: str, host: str, *options: str) -> list[str]:
    """The command of Spark's ``name``, such as ``worker.Worker``."""
    return ["spark-class", f"org.apache.spark.deploy.{name}", "--host", host, "--webui-port", "0", *options]


def test_ranks_of_two_nodes_have_their_places_and_lose_a_node_that_is_out_of_reach(
    own_network: Network, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "jobs").mkdir()
    home = Home(str(tmp_path / "home"))
    environ = {**home.environment, **LAST_RESORTS, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environ["PATH"] = f"{home.folder}/bin:{os.environ['PATH']}"
    with ExitStack() as stack:

        def start(host: str, name: str, *command: str) -> tuple[HostProcess, Path]:
            log = tmp_path / f"{name}.{host}.log"
            own = {**environ, "SPARK_LOCAL_HOSTNAME": host}
            return stack.enter_context(running(own_network[host], log, own, *command)), log

        _, log = start("a", "master", *daemon("master.Master", "a", "--port", "7077"))
        until(lambda: log.exists() and "elected leader" in log.read_text())
        for host in "ab":
            start(host, "worker", *daemon("worker.Worker", host, "-c", "2", "-m", "1g", "spark://a:7077"))
        script = str(Path(__file__).with_name("spark_nodes.py"))
        driver, out = start("a", "driver", sys.executable, script, str(tmp_path / "jobs"))
        until(lambda: len(list(tmp_path.glob("jobs/ready.*"))) == 4 or driver.poll() is not None)
        own_network.set_port("b", "down")
        cut = time.time()
        driver.wait(PATIENCE_S)
    told = json.loads(next(line for line in out.read_text().splitlines() if line.startswith("{")))
    first, second = (told["results"][rank]["host"] for rank in (0, 2))
    assert {first, second} == {"a", "b"}
    assert told["results"] == [
        {"place": [rank, 4, rank % 2, 2, rank // 2, 2], "total": 10.0, "host": first if rank < 2 else second}
        for rank in range(4)
    ]
    lost = {rank: json.loads((tmp_path / f"jobs/lost.{rank}").read_text()) for rank in range(4)}
    for rank, seen in lost.items():  # of another job, whose ranks may be placed the other way round
        other = 3 - rank
        assert (seen["lost"] // 2, seen["host"]) == (other // 2, lost[other]["here"])
        assert seen["here"] != seen["host"]
        assert seen["at"] < cut + PROMPT_S
    assert told["error"] == "WorkerFailed", told
    assert told["at"] < cut + PROMPT_S  # Spark itself takes 120 s to notice
