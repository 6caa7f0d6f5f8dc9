"""The engines that keep the contract, a row for each. Another engine is another class, and its name in `ROWS`.

An engine either runs a command as every rank (`CommandRow`), or calls a function and returns its results
(`FunctionRow`). What it cannot do it says by name in ``cannot``, with the reason: the test expects exactly that to
fail, and a run prints it.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hvdlite
from hvdlite.errors import FunctionFailed, WorkerFailed
from tests.engines import rays
from tests.engines.part import ENDED_BY_ENGINE, FAILING, LEFT_ALONE
from tests.engines.spark import Home, needs_spark, spark_home
from tests.engines.starting import mpirun, needs_dask, needs_open_mpi, torchrun
from tests.harness import slurm
from tests.harness.patience import LAST_RESORTS, NEVER_SILENT
from tests.hosts.nodes import free_port

PART = str(Path(__file__).with_name("part.py"))
CALLER = str(Path(__file__).with_name("caller.py"))
HERE = ("localhost", socket.gethostname())


class Row:
    """An engine. ``needs`` skips it where it is not installed, and ``cannot`` has reasons by promise.

    ``codes`` are the exit codes of the caller by scenario, several where the engine leaves it to chance, and ``ending``
    is what becomes of the other ranks when one fails. If ``keeps_processes``, the processes in which ranks ran serve
    other jobs afterwards. The ranks run on ``hosts``, of which the one of the rank that fails has one of the
    ``names``, and the caller has ``environment`` beside that of the test.
    """

    name = ""
    needs: tuple[pytest.MarkDecorator, ...] = ()
    cannot: ClassVar[Mapping[str, str]] = {}
    codes: ClassVar[Mapping[str, int | tuple[int, ...]]] = {}
    ending = ENDED_BY_ENGINE
    keeps_processes = False
    hosts = 1
    names: Sequence[str] = HERE
    environment: Mapping[str, str] = {}

    @contextmanager
    def cluster(self) -> Iterator[None]:
        """Runs what the engine needs for its jobs, from before the first until after the last."""
        yield

    def caller(self, ranks: int, scenario: str, folder: str) -> list[str]:
        """The command of the process that runs the job, and gets the user's signals."""
        raise NotImplementedError

    def blames(self, log: str) -> tuple[int | None, str]:
        """The rank that failed first and its host, as the caller hears of them in ``log``; None and empty if not."""
        raise NotImplementedError

    def stored(self) -> str:
        """What the engine stores of its jobs or shows to others, beside what the caller gets."""
        return ""

    def pid(self, rank: int, pid: int) -> int:
        """The id on this machine of the process of ``rank``, whose own id it says is ``pid``."""
        return pid

    def files(self) -> list[str]:
        """The files in shared memory of hosts that have one of their own."""
        return []


class CommandRow(Row):
    """An engine that runs a command as every rank. ``blame`` finds the ``rank`` and the ``host`` in its messages."""

    blame = ""
    cannot: ClassVar = {"results": "a command has an exit code, and no result"}

    def command(self, ranks: int) -> list[str]:
        """The command of ``ranks`` ranks, up to the script and its arguments."""
        raise NotImplementedError

    def caller(self, ranks: int, scenario: str, folder: str) -> list[str]:
        return [*self.command(ranks), PART, scenario, folder, self.ending]

    def blames(self, log: str) -> tuple[int | None, str]:
        found = re.search(self.blame, log).groupdict() if self.blame and re.search(self.blame, log) else {}
        return (int(found["rank"]) if found.get("rank") else None), found.get("host") or ""


class FunctionRow(Row):
    """An engine that calls a function on every rank, in a process of its own for each job: ``caller.py``."""

    def caller(self, ranks: int, scenario: str, folder: str) -> list[str]:
        return [sys.executable, CALLER, self.name, str(ranks), scenario, folder, self.ending]

    def call(self, function: Callable[..., Any], args: Sequence[str], ranks: int) -> list[Any]:
        """Calls ``function(*args)`` on every rank; returns the results by rank."""
        raise NotImplementedError

    def blamed(self, error: Exception) -> tuple[int | None, str]:
        """The rank that failed first and its host, as the ``error`` of `call` says."""
        raise NotImplementedError

    def blames(self, log: str) -> tuple[int | None, str]:
        found = re.search(r"^caller: rank (\d+) on (.*)$", log, re.MULTILINE)
        return (int(found[1]), found[2]) if found else (None, "")


class Hvdrun(CommandRow):
    name = "hvdrun"
    codes: ClassVar = {"raises": 1, "killed": 137, "interrupted": 130, "terminated": 143}
    blame = r"hvdrun: rank (?P<rank>\d+) on (?P<host>\S+) (?:ended|was ended)"

    def command(self, ranks: int) -> list[str]:
        return [sys.executable, "-m", "hvdlite.launcher.cli", "-np", str(ranks), sys.executable]


class InSlurm(Hvdrun):
    """hvdrun in a job of Slurm whose only node is this machine: the contract looks at processes of this machine."""

    name = "hvdrun in Slurm"
    needs = (pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),)

    @contextmanager
    def cluster(self) -> Iterator[None]:
        with slurm.OneNode(tasks=2) as self._node:
            yield

    def command(self, ranks: int) -> list[str]:
        variables = [f"{name}={value}" for name, value in self._node.variables.items()]
        return ["env", *variables, *super().command(ranks)]

    def stored(self) -> str:
        return self._node.stored()


class Srun(CommandRow):
    """The tasks of a step of Slurm are the ranks, on two nodes. They need a key, which the user gives to all of them.

    Without the two options srun would wait for the other ranks, and for a second Ctrl-C.
    """

    name = "srun"
    needs = InSlurm.needs
    # Its code is the highest of all ranks. It kills them at once after Ctrl-C, of which they may have died before.
    codes: ClassVar = {"raises": 1, "killed": 137, "interrupted": (130, 137), "terminated": 137}
    blame = r"srun: error: (?P<host>\S+): task (?P<rank>\d+): (?:Exited with|Killed)"
    hosts = 2
    names = slurm.NODES[FAILING:]

    @contextmanager
    def cluster(self) -> Iterator[None]:
        with slurm.Cluster() as self._cluster:
            self.environment = {**self._cluster.variables, "HVDLITE_SECRET": secrets.token_hex(32)}
            yield

    def command(self, ranks: int) -> list[str]:
        options = [f"--nodes={ranks}", f"--ntasks={ranks}", "--kill-on-bad-exit=1", "--quit-on-interrupt"]
        return ["srun", *options, sys.executable]

    def caller(self, ranks: int, scenario: str, folder: str) -> list[str]:
        command = super().caller(ranks, scenario, folder)
        return self._cluster.head.command_of_a_child(command, Path(folder, "cwd"))

    def stored(self) -> str:
        return self._cluster.stored()

    def pid(self, rank: int, pid: int) -> int:
        return self._cluster.network[slurm.NODES[rank]].outer(pid)

    def files(self) -> list[str]:
        listed = {name: self._cluster.network[name].check("ls", "/dev/shm").split() for name in slurm.NODES}
        return [f"{name}: /dev/shm/{file}" for name, files in listed.items() for file in files]


class Nodes(CommandRow):
    """Two nodes on this host, of which node 0 is the caller."""

    name = "hvdrun on every node"
    hosts = 2
    codes = Hvdrun.codes
    blame = Hvdrun.blame

    @contextmanager
    def cluster(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            self._key = Path(folder, "key")
            self._key.write_text(secrets.token_hex(32))
            yield

    def command(self, ranks: int) -> list[str]:
        assert ranks == 2
        place = ["--nnodes", "2", "--master", f"localhost:{free_port()}", "--secret-file", str(self._key), "-ppn", "1"]
        start = [sys.executable, "-m", "hvdlite.launcher.cli", *place, "--node-rank"]
        both = f'{shlex.join(start)} 1 "$@" & exec {shlex.join(start)} 0 "$@"'
        return ["sh", "-c", both, "sh", sys.executable]

    def blames(self, log: str) -> tuple[int | None, str]:
        rank, host = super().blames(log)
        return rank, host.removesuffix("#1")  # which tells node 1 from node 0 on the same host


class Run(FunctionRow):
    name = "hvdlite.run"
    codes: ClassVar = {
        "raises": 1,
        "killed": 1,
        "interrupted": -signal.SIGINT,
        "terminated": -signal.SIGTERM,
    }

    def call(self, function: Callable[..., Any], args: Sequence[str], ranks: int) -> list[Any]:
        return hvdlite.run(function, args, np=ranks)

    def blamed(self, error: Exception) -> tuple[int | None, str]:
        return (error.rank, error.host) if isinstance(error, FunctionFailed | WorkerFailed) else (None, "")


class Torchrun(CommandRow):
    name = "torchrun"
    codes: ClassVar = {"raises": 1, "killed": 1, "interrupted": 1, "terminated": 1}
    blame = r"Root Cause[^=]*?host +: (?P<host>\S+)\s+rank +: (?P<rank>\d+)"
    cannot: ClassVar = {
        **CommandRow.cannot,
        "no file is left": "torchrun leaves the folders of its log files in the temporary directory",
    }

    def command(self, ranks: int) -> list[str]:
        return torchrun("--nproc-per-node", str(ranks))


class OpenMpi(CommandRow):
    name = "mpirun"
    needs = (needs_open_mpi,)
    codes: ClassVar = {"raises": 1, "killed": 137, "interrupted": 1, "terminated": 1}
    blame = (
        r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]|process rank (?P<killed>\d+) with PID \d+ on node (?P<host>\S+)"
    )
    cannot: ClassVar = {
        **CommandRow.cannot,
        "the host of the error": "mpirun says which process exited with an error, and not where",
    }

    def command(self, ranks: int) -> list[str]:
        return mpirun(ranks)

    def blames(self, log: str) -> tuple[int | None, str]:
        found = re.search(self.blame, log)
        if found is None:
            return None, ""
        return int(found["rank"] or found["killed"]), found["host"] or ""


class Spark(FunctionRow):
    """A driver of its own for each scenario, because it is the caller, and gets the signals."""

    name = "spark"
    needs = (needs_spark,)
    codes: ClassVar = {"raises": 1, "killed": 1, "interrupted": -signal.SIGINT, "terminated": -signal.SIGTERM}
    ending = LEFT_ALONE
    home: Home | None = None

    @contextmanager
    def cluster(self) -> Iterator[None]:
        with spark_home() as self.home:
            yield
            assert self.home.was_shown, "no page of Spark's was searched for keys"

    def call(self, function: Callable[..., Any], args: Sequence[str], ranks: int) -> list[Any]:
        import pyspark

        import hvdlite.spark

        pyspark.SparkContext(appName="contract")
        return hvdlite.spark.run(function, args, num_proc=ranks)

    def blamed(self, error: Exception) -> tuple[int | None, str]:
        return (error.rank, error.host) if isinstance(error, FunctionFailed | WorkerFailed) else (None, "")

    def stored(self) -> str:
        assert self.home is not None
        return self.home.stored()


class Dask(FunctionRow):
    name = "dask"
    needs = (needs_dask,)
    codes: ClassVar = {"raises": 1, "killed": 1, "interrupted": -signal.SIGINT, "terminated": -signal.SIGTERM}

    @contextmanager
    def cluster(self) -> Iterator[None]:
        program = str(Path(__file__).with_name("dask_cluster.py"))
        with (
            tempfile.TemporaryDirectory() as folder,
            subprocess.Popen(
                [sys.executable, program, "2", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process,
            pytest.MonkeyPatch.context() as patch,
        ):
            assert process.stdout is not None
            patch.setenv("TEST_DASK_SCHEDULER", process.stdout.readline().strip())
            yield

    def call(self, function: Callable[..., Any], args: Sequence[str], ranks: int) -> list[Any]:
        from distributed import Client

        import hvdlite.dask

        with Client(os.environ["TEST_DASK_SCHEDULER"]) as client:
            return hvdlite.dask.run(client, function, args, env={**LAST_RESORTS, **NEVER_SILENT})

    def blamed(self, error: Exception) -> tuple[int | None, str]:
        return (error.rank, error.host) if isinstance(error, FunctionFailed | WorkerFailed) else (None, "")


class Ray(FunctionRow):
    name = "ray"
    needs = (rays.needs_ray,)
    # Ray handles SIGTERM in Python and in C++, and the latter aborts.
    codes: ClassVar = {"raises": 1, "killed": 1, "interrupted": 1, "terminated": (1, -signal.SIGABRT)}
    ending = LEFT_ALONE
    hosts = 2

    @contextmanager
    def cluster(self) -> Iterator[None]:
        with rays.cluster() as self._cluster:
            self.environment = self._cluster.environment
            yield

    def call(self, function: Callable[..., Any], args: Sequence[str], ranks: int) -> list[Any]:
        from hvdlite.ray import RayExecutor

        rays.connect()
        executor = RayExecutor(num_hosts=ranks)
        executor.start(
            extra_env_vars={name: value for name, value in os.environ.items() if name.startswith("HVDLITE_")}
        )
        return executor.run(function, args)

    def blamed(self, error: Exception) -> tuple[int | None, str]:
        return (error.rank, error.host) if isinstance(error, FunctionFailed | WorkerFailed) else (None, "")

    def stored(self) -> str:
        return self._cluster.stored()


ROWS: dict[str, Row] = {
    row.name: row
    for row in (Hvdrun(), InSlurm(), Srun(), Nodes(), Run(), Torchrun(), OpenMpi(), Spark(), Dask(), Ray())
}
