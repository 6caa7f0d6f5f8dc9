"""A cluster of Slurm on test hosts: ``head`` with the controller, where users log in, and the nodes n1 and n2.

All its files are in a temporary folder, and its daemons end with the hosts. It authenticates nobody, since all hosts
are this machine. Processes of a step are found by their parents, or by control groups, which then also confine jobs to
their cores, memory and GPUs. Each node has GPUs for Slurm to count and to name: device files of no driver.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess
from types import TracebackType
from typing import Final, Self

from tests.harness import cgroups, hosts
from tests.harness.hosts import Host, HostProcess, Network, command_line
from tests.harness.patience import PATIENCE_S, PROMPT_S
from tests.hosts.nodes import free_port

NODES: Final = ("n1", "n2")
GPUS: Final = 2  # of each node
_NO_DRIVER: Final = 240  # a major number that Linux leaves to local use
_PACKAGES: Final = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
_LOOK_S: Final = 0.05  # how often it looks
_FINAL: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)
_CONF: Final = """\
ClusterName=test
SlurmctldHost=head
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=30
SlurmdTimeout=300
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Returns what is missing for a cluster here, and how to get it; empty if nothing is."""
    packages = sorted({package for tool, package in _PACKAGES.items() if not shutil.which(tool, path=hosts.SEARCHED)})
    if packages:
        return f"a cluster of Slurm needs {', '.join(packages)}: apt-get install {' '.join(packages)}"
    return hosts.missing()


_CGROUPS: Final = {
    "proctrack/linuxproc": "proctrack/cgroup",
    "task/none": "task/cgroup,task/affinity",
    "SlurmdParameters=config_overrides\n": "",  # it would leave all cores to every job
}
_CGROUP_CONF: Final = """\
CgroupAutomount=no
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
ConstrainDevices=yes
"""


def missing_cgroups() -> str:
    """Returns why a cluster here cannot have control groups; empty if it can."""
    if cgroups.IS_V2:
        return "Slurm needs systemd for control groups of version 2"
    return next(filter(None, map(cgroups.missing, ("freezer", "cpuset", "memory", "devices"))), "")


def _end(daemon: HostProcess) -> None:
    """Ends a daemon as its user would; whoever kills it leaves its remains to others, for which the host waits."""
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
    daemon.wait(PROMPT_S)


class Job:
    """A job that a batch script describes. Its output is in a file that all hosts see."""

    def __init__(self, cluster: Cluster, number: str, output: Path) -> None:
        self._cluster, self.number, self._output = cluster, number, output

    @property
    def output(self) -> str:
        """What the script and its steps have written so far."""
        return self._output.read_text() if self._output.exists() else ""

    @property
    def record(self) -> str:
        """What Slurm shows of the job."""
        return self._cluster.check("scontrol", "show", "job", "--details", self.number)

    @property
    def state(self) -> str:
        return re.search(r"JobState=(\w+)", self.record)[1]  # type: ignore[index]

    def wait_for_output(self, text: str, count: int) -> None:
        """Waits until the output contains ``text`` so many times. Fails at the deadline, or if the job ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while self.output.count(text) < count:
            is_over = self.state in _FINAL and self.output.count(text) < count
            assert not is_over, f"{self.record}\n{self.output}"
            assert time.monotonic() < deadline, f"{self.record}\n{self.output}"
            time.sleep(_LOOK_S)

    def wait(self) -> int:
        """The exit code of the script, or 128 + n after signal n, once the job has ended and its nodes are free."""
        deadline = time.monotonic() + PATIENCE_S
        while self.state not in _FINAL:
            assert time.monotonic() < deadline, f"{self.record}\n{self.output}"
            time.sleep(_LOOK_S)
        code, signum = re.search(r" ExitCode=(\d+):(\d+)", self.record).groups()  # type: ignore[union-attr]
        return 128 + int(signum) if int(signum) else int(code)


class Cluster:
    """The cluster; a context manager. If it ``has_cgroups``, the names of its nodes are its own on this machine."""

    def __init__(self, *, has_cgroups: bool = False) -> None:
        self.nodes = tuple(f"c{os.getpid()}{letter}" for letter in "ab") if has_cgroups else NODES
        self._closing = ExitStack()
        self.folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        with ExitStack() as undo:
            undo.callback(self._closing.close)
            for name in self.nodes if has_cgroups else ():
                self._closing.enter_context(cgroups.swept(f"slurm_{name}"))
            self.network = self._closing.enter_context(Network("head", *self.nodes))
            address = {host.name: host.address for host in self.network}
            cores = len(os.sched_getaffinity(0)) if has_cgroups else 4
            nodes = "\n".join(
                f"NodeName={name} NodeAddr={address[name]} CPUs={cores} RealMemory=1000 Gres=gpu:{GPUS}"
                for name in self.nodes
            )
            self.conf = self.folder / "slurm.conf"
            text = _CONF.format(folder=self.folder, nodes=nodes, names=",".join(self.nodes))
            for usual, other in _CGROUPS.items() if has_cgroups else ():
                text = text.replace(usual, other)
            self.conf.write_text(text)
            (self.folder / "cgroup.conf").write_text(_CGROUP_CONF)
            for number in range(GPUS):
                os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(_NO_DRIVER, number))
            (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
            self.variables = {"SLURM_CONF": str(self.conf)}
            for name in ("state", *(f"spool-{node}" for node in self.nodes)):
                (self.folder / name).mkdir()
            self._start("head", "slurmctld")
            for node in self.nodes:
                self._start(node, "slurmd")
            self._wait_for_nodes()
            self._daemons = {process for host in self.network for process in host.processes()}
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @property
    def head(self) -> Host:
        """The host where users log in. It runs no job."""
        return self.network["head"]

    def run(self, *command: str, cwd: Path = hosts.ROOT) -> CompletedProcess[str]:
        """Runs a command of a user on the head to its end."""
        return self.head.run(*command, cwd=cwd, env=self.variables)

    def popen(self, *command: str) -> HostProcess:
        """Starts one."""
        return self.head.popen(*command, env=self.variables)

    def check(self, *command: str) -> str:
        """Runs one that must succeed; returns its stdout."""
        ended = self.run(*command)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def submit(self, script: str, *options: str) -> Job:
        """Hands the batch script in, from the root of the repository."""
        number = len(list(self.folder.glob("script-*")))
        path, output = self.folder / f"script-{number}", self.folder / f"output-{number}"
        path.write_text(script)
        job = self.check("sbatch", "--parsable", f"--output={output}", "--open-mode=append", *options, str(path))
        return Job(self, job.strip(), output)

    def wait_until_idle(self) -> None:
        """Waits until all nodes are up and free, and no process of a job is left on them."""
        self._wait_for_nodes()
        deadline = time.monotonic() + PATIENCE_S
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(_LOOK_S)

    def processes(self, part: str = "") -> list[str]:
        """The command lines, with ``part``, of the processes of jobs and users on all hosts."""
        found = [process for host in self.network for process in host.processes(part)]
        return [line for process in found if process not in self._daemons and (line := command_line(process))]

    def logs(self) -> str:
        """The last lines of the daemons."""
        return "\n".join("\n".join(path.read_text().splitlines()[-20:]) for path in sorted(self.folder.glob("*.log")))

    def stored(self) -> str:
        """What the daemons store of jobs, show of them, and write to their logs."""
        texts = [self.run("scontrol", "show", what).stdout for what in ("jobs", "steps")]
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.name.startswith("output-"):
                texts.append(path.read_bytes().decode(errors="replace"))
        return "\n".join(texts)

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (states := self.run("sinfo", "-h", "-N", "-o", "%t").stdout.split()) != ["idle"] * len(self.nodes):
            assert time.monotonic() < deadline, f"{states}\n{self.logs()}"
            time.sleep(_LOOK_S)

    def _start(self, host: str, daemon: str) -> None:
        line = f"exec {daemon} -D -f {self.conf} 2> {self.folder}/{daemon}-{host}.log"
        process = self._closing.enter_context(self.network[host].popen("sh", "-c", line))
        self._closing.callback(_end, process)


class OneNode:
    """A cluster whose only node is this machine, without namespaces, and a job that has it; a context manager.

    ``variables`` are those of the job's shell.
    """

    def __init__(self, tasks: int) -> None:
        self._closing = ExitStack()
        self.folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        with ExitStack() as undo:
            undo.callback(self._closing.close)
            name, ports = socket.gethostname(), [free_port() for _ in range(2)]
            node = f"NodeName={name} NodeAddr=127.0.0.1 Port={ports[0]} CPUs={tasks} RealMemory=1000"
            text = _CONF.format(folder=self.folder, nodes=node, names=name)
            conf = self.folder / "slurm.conf"
            conf.write_text(
                text.replace("SlurmctldHost=head", f"SlurmctldHost={name}(127.0.0.1)\nSlurmctldPort={ports[1]}")
            )
            self.variables = {"SLURM_CONF": str(conf)}
            for folder in ("state", f"spool-{name}"):
                (self.folder / folder).mkdir()
            for daemon in ("slurmctld", "slurmd"):
                log = self._closing.enter_context((self.folder / f"{daemon}.log").open("wb"))
                command = [shutil.which(daemon, path=hosts.SEARCHED) or daemon, "-D", "-f", str(conf)]
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                self._closing.callback(process.wait)
                self._closing.callback(process.terminate)
            deadline = time.monotonic() + PATIENCE_S
            while self._run("sinfo", "-h", "-o", "%t").strip() != "idle":
                assert time.monotonic() < deadline, self.stored()
                time.sleep(_LOOK_S)
            number = re.search(r"job allocation (\d+)", self._run("salloc", "--no-shell", f"--ntasks={tasks}"))
            assert number, self.stored()
            self._closing.callback(self._run, "scancel", number[1])
            job = {"ID": number[1], "NODELIST": name, "CPUS_PER_NODE": str(tasks)}
            self.variables |= {f"SLURM_JOB_{name}": value for name, value in job.items()}
            self.variables |= {"SLURM_NTASKS": str(tasks), "SLURM_TASKS_PER_NODE": str(tasks)}
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def stored(self) -> str:
        """What the daemons store of the job, show of it, and write to their logs."""
        files = [path.read_bytes().decode(errors="replace") for path in self.folder.rglob("*") if path.is_file()]
        return "\n".join([*files, self._run("scontrol", "show", "jobs"), self._run("scontrol", "show", "steps")])

    def _run(self, *command: str) -> str:
        ended = subprocess.run(command, env={**os.environ, **self.variables}, capture_output=True, text=True)
        return ended.stdout + ended.stderr
