"""Test hosts, made of namespaces of this machine, which hvdrun cannot tell from real hosts.

Each host has its own processes, hostname, network, /dev/shm, /run, ~/.ssh and ~/.cache, and a real sshd. All other
files are this machine's, as on hosts with a shared disk. The hosts hang on switches (bridges), which are namespaces
too. No namespace has a name: a host is its process 1, which ends when its stdin does, so nothing outlives this process.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.harness.hostfiles import Keys, files_of
from tests.harness.patience import PATIENCE_S, PROMPT_S

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = {"ip": "iproute2", "nft": "nftables", "ss": "iproute2", "ssh": "openssh-client", "sshd": "openssh-server"}
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_HOST_INIT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("host_init.py")))
_SWITCH_INIT = ("sh", "-c", "echo up; read _")


def missing() -> str:
    """Returns what is missing for test hosts here, and how to get it; empty if nothing is."""
    if os.geteuid() != 0:
        return "test hosts need root; run the tests as root, in a container for example"
    packages = {package for tool, package in _PACKAGES.items() if shutil.which(tool, path=SEARCHED) is None}
    if packages:
        return f"test hosts need {', '.join(sorted(packages))}: apt-get install {' '.join(sorted(packages))}"
    if subprocess.run(["unshare", "--net", "--uts", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "test hosts need namespaces, which this system does not permit; run in a privileged container"
    return ""


def command_line(process: psutil.Process) -> str:
    """The command line of a process; empty if it has ended meanwhile."""
    try:
        while not (words := process.cmdline()):  # it is amid an execve, or ending
            pass
    except psutil.NoSuchProcess:
        return ""
    return " ".join(words)


class _Namespaces:
    """Fresh namespaces of these ``kinds`` with a process 1 that says ``up`` and lives until its stdin ends."""

    def __init__(self, kinds: Sequence[str], init: Sequence[str]) -> None:
        command = ["unshare", *(f"--{kind}" for kind in kinds), "--fork", "--kill-child", *init]
        self._holder = subprocess.Popen(
            command, cwd="/", env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def tell(self, message: Mapping[str, Any]) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.write(json.dumps(message) + "\n")

    def expect(self, word: str) -> None:
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"a test host could not be made; it said {said!r} instead of {word!r}, see above")

    @property
    def init(self) -> psutil.Process:
        """The id of process 1 on this machine."""
        (child,) = psutil.Process(self._holder.pid).children()
        return child

    def close(self) -> None:
        try:
            self._holder.communicate(timeout=PROMPT_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.communicate()


class Host:
    """One test host. ``addresses`` are those of its interfaces eth0, eth1, ..."""

    def __init__(self, name: str, addresses: Sequence[str], namespaces: _Namespaces) -> None:
        self.name, self.addresses = name, tuple(addresses)
        self._init = namespaces.init
        self._pid_namespace = os.readlink(f"/proc/{self._init.pid}/ns/pid")
        self._enter = ("nsenter", "--target", str(self._init.pid), "--mount", "--uts", "--ipc", "--net", "--pid")
        self._own: list[psutil.Process] = []
        self._own = self.processes()

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def pid(self) -> int:
        """The id of its process 1 on this machine."""
        return self._init.pid

    @property
    def sshd(self) -> psutil.Process:
        """The listening sshd, the parent of all sessions."""
        (found,) = (process for process in self._own if "sshd" in process.name())
        return found

    def command(self, arguments: Sequence[str], cwd: Path = ROOT) -> list[str]:
        """Wraps ``arguments`` into a command of this machine that runs on the host."""
        return [*self._enter, "--", "env", "-C", str(cwd), *arguments]

    def command_of_a_child(self, arguments: Sequence[str], cwd: Path = ROOT) -> list[str]:
        """As `command`, but whoever starts it is the parent of ``arguments`` themselves, and signals that process.

        It does not see the processes of the host, and is none of them.
        """
        return [*(word for word in self._enter if word != "--pid"), "--", "env", "-C", str(cwd), *arguments]

    def outer(self, pid: int) -> int:
        """The id on this machine of a process that is ``pid`` on the host. Raises LookupError if there is none."""
        for process in self.processes():
            with suppress(OSError):  # it has ended
                status = Path(f"/proc/{process.pid}/status").read_text()
                if re.search(rf"^NSpid:.*\s{pid}$", status, re.MULTILINE):
                    return process.pid
        raise LookupError(f"{self.name} has no process {pid}")

    def run(
        self, *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        with self.popen(*arguments, cwd=cwd, env=env) as process:
            out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(arguments, process.returncode, out.decode(), err.decode())

    def popen(self, *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> HostProcess:
        """Starts a command with its output in pipes. Signals sent to the returned object reach the command itself."""
        return HostProcess(
            self.command(arguments, cwd),
            env={**_environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def processes(self, part: str = "", besides: str | None = None) -> list[psutil.Process]:
        """The processes of this host with ``part`` in their command line and without ``besides``.

        Leaves out zombies, and processes that every host has.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.NoSuchProcess):
                if os.readlink(f"/proc/{process.pid}/ns/pid") != self._pid_namespace:
                    continue
                line = command_line(process)
                is_wanted = part in line and (besides is None or besides not in line)
                if is_wanted and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return [process for process in found if process not in self._own]

    def nft(self, rules: str) -> None:
        """Feeds ``rules`` to nft on this host."""
        subprocess.run([*self._enter, "nft", "-f", "-"], input=rules, text=True, check=True)

    def check(self, *arguments: str) -> str:
        """Runs a command that must succeed; returns its stdout."""
        return subprocess.run([*self._enter, "--", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


class HostProcess(subprocess.Popen[bytes]):
    """A command on a test host, killed at the end of its ``with``; nsenter lies between it and this process."""

    @property
    def inner(self) -> psutil.Process:
        """The id of the command itself on this machine."""
        (child,) = psutil.Process(self.pid).children()
        return child

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            self.inner.send_signal(sig)
        if sig == signal.SIGCONT:
            super().send_signal(sig)  # nsenter stops itself when its child is stopped

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in psutil.Process(self.pid).children() if self.poll() is None else ():
            with suppress(psutil.NoSuchProcess):  # it has just ended by itself
                process.kill()
        super().send_signal(signal.SIGKILL)
        super().__exit__(kind, error, trace)


class Network:
    """Test hosts ``names`` on ``nics`` switches; a context manager. Names resolve to the addresses on the first."""

    def __init__(self, *names: str, nics: int = 1) -> None:
        self._closing = ExitStack()
        addresses = {
            name: [f"10.{97 + nic}.0.{number}" for nic in range(nics)] for number, name in enumerate(names, start=1)
        }
        with ExitStack() as undo:
            undo.callback(self.close)
            switch = self._namespaces(("net", "pid"), _SWITCH_INIT)
            spaces = {
                name: self._namespaces(("mount", "uts", "ipc", "net", "pid", "mount-proc"), _HOST_INIT)
                for name in names
            }
            with Keys(names) as keys:
                for name, space in spaces.items():
                    first = {other: address[0] for other, address in addresses.items()}
                    space.tell({"name": name, "files": files_of(name, first, keys)})
            for space in (switch, *spaces.values()):
                space.expect("up")
            self._enter_switch = ("nsenter", "--target", str(switch.init.pid), "--net", "--")
            self._wire({name: space.init.pid for name, space in spaces.items()}, nics)
            for name, space in spaces.items():
                space.tell({"addresses": {f"eth{nic}": f"{text}/24" for nic, text in enumerate(addresses[name])}})
            for space in spaces.values():
                space.expect("ready")
            self.hosts = {name: Host(name, addresses[name], space) for name, space in spaces.items()}
            undo.pop_all()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the hosts and everything on them."""
        self._closing.close()

    def set_port(self, name: str, state: str, nic: int = 0) -> None:
        """Sets the switch's end of a host's link ``up`` or ``down``: the host sees a cable without a signal."""
        subprocess.run([*self._enter_switch, "ip", "link", "set", f"{name}-{nic}", state], check=True)

    def set_mtu(self, name: str, mtu: int, nic: int = 0) -> None:
        """Sets the largest packet, in bytes, that passes over a host's link in either direction."""
        self[name].check("ip", "link", "set", f"eth{nic}", "mtu", str(mtu))
        subprocess.run([*self._enter_switch, "ip", "link", "set", f"{name}-{nic}", "mtu", str(mtu)], check=True)

    def leftovers(self) -> list[str]:
        """Lists what a test has left on the hosts: processes, rules, interfaces that are down, files in /dev/shm."""
        left = []
        for host in self:
            left += [f"{host.name}: process {line}" for process in host.processes() if (line := command_line(process))]
            left += [f"{host.name}: {line}" for line in host.check("nft", "list", "tables").splitlines()]
            left += [f"{host.name}: {line}" for line in host.check("ip", "-br", "link").splitlines() if "DOWN" in line]
            left += [f"{host.name}: /dev/shm/{line}" for line in host.check("ls", "/dev/shm").splitlines()]
        return left

    def clean(self) -> None:
        """Removes everything that `leftovers` lists, so that a failing test does not make others fail."""
        for host in self:
            for process in host.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            host.nft("flush ruleset")
            host.check("sh", "-c", "rm -rf /dev/shm/*")
            for nic in range(len(host.addresses)):
                host.check("ip", "link", "set", f"eth{nic}", "up")
                self.set_port(host.name, "up", nic)

    def _namespaces(self, kinds: Sequence[str], init: Sequence[str]) -> _Namespaces:
        namespaces = _Namespaces(kinds, init)
        self._closing.callback(namespaces.close)
        return namespaces

    def _wire(self, pids: Mapping[str, int], nics: int) -> None:
        batch = []
        for nic in range(nics):
            batch += [f"link add switch{nic} type bridge", f"link set switch{nic} up"]
            for name, pid in pids.items():
                batch += [
                    f"link add {name}-{nic} type veth peer name eth{nic} netns {pid}",
                    f"link set {name}-{nic} master switch{nic} up",
                ]
        text = "\n".join(batch)
        subprocess.run([*self._enter_switch, "ip", "-batch", "-"], input=text, text=True, check=True)


def main() -> None:
    """Runs hosts of the given names on two networks until stdin ends, and prints how to enter them."""
    if reason := missing():
        sys.exit(reason)
    with Network(*(sys.argv[1:] or ("node1", "node2")), nics=2) as network:
        for host in network:
            print(f"{host.name}: {shlex.join(host.command(['bash'], Path.cwd()))}", flush=True)
        sys.stdin.read()


def _environment() -> dict[str, str]:
    """This process's environment, with the interpreter's own commands and those of the system on PATH."""
    home = pwd.getpwuid(os.geteuid()).pw_dir
    return {**os.environ, "HOME": home, "PATH": f"{Path(sys.executable).parent}:{SEARCHED}"}


if __name__ == "__main__":
    main()
