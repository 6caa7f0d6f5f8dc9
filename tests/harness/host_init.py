"""Process 1 of a test host, which mounts the host's files, starts its sshd, and reaps orphans. The host ends with it.

It runs in fresh namespaces, so its mounts belong to the host and end with it. A line of JSON on stdin
holds the host's ``name`` and ``files`` (path -> text); the answer is ``up``. A second line, once the links are there,
holds the ``addresses`` by interface; the answer is ``ready``, and sshd listens. The host lives until its stdin ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

_OWN_FOLDERS = ("/run", "/dev/shm", os.path.expanduser("~/.ssh"), os.path.expanduser("~/.cache"))
_SSHD = "/usr/sbin/sshd"


def main() -> None:
    _prepare(**json.loads(sys.stdin.readline()))
    print("up", flush=True)
    _connect(**json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    sys.stdin.read()


def _prepare(name: str, files: dict[str, str]) -> None:
    socket.sethostname(name)
    for folder in _OWN_FOLDERS:
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        mode = "1777" if folder == "/dev/shm" else "755"
        _run("mount", "-t", "tmpfs", "-o", f"mode={mode}", "test-host", folder)
    for number, (path, text) in enumerate(files.items()):
        is_ours = path.startswith(_OWN_FOLDERS)
        place = Path(path if is_ours else f"/run/file-{number}")
        place.parent.mkdir(exist_ok=True)
        place.touch(mode=0o644 if path.startswith("/etc/") else 0o600)
        place.write_text(text)
        if not is_ours and Path(path).exists():
            _run("mount", "--bind", str(place), path)


def _connect(addresses: dict[str, str]) -> None:
    _run("ip", "link", "set", "lo", "up")
    for interface, address in addresses.items():
        _run("ip", "address", "add", address, "dev", interface)
        _run("ip", "link", "set", interface, "up")
    _run(_SSHD, "-f", "/run/sshd/config", "-E", "/run/sshd/log")  # returns once it listens


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(f"{' '.join(command)}: {ended.stderr.strip()}")


if __name__ == "__main__":
    main()
