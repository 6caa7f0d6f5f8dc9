"""An agent's facts about its host: limits of control groups, the machine, and its Python's packages."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.host.cgroups import cores_limit, memory_limit
from hvdlite.host.machine import describe_machine
from hvdlite.launcher.agent.software import examine
from hvdlite.version import __version__
from tests.harness.patience import PATIENCE_S


def groups(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A tree of control groups with those files, and what /proc/self/cgroup says."""
    for name, content in files.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_text(content)
    (folder / "own").write_text(own)
    return folder / "tree", folder / "own"


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("0::/job/step\n", {"job/cpu.max": "150000 100000\n", "job/memory.max": "1000\n"}, 1.5, 1000),
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000\n", "job/step/memory.max": "max\n"}, None, None),
        ("0::/job/step\n", {"job/cpu.max": "400000 100000", "job/step/cpu.max": "200000 100000"}, 2.0, None),
        ("0::/somewhere/else\n", {"cpu.max": "50000 100000\n", "memory.max": "77\n"}, 0.5, 77),
        (
            "5:cpu,cpuacct:/box\n4:memory:/box\n",
            {
                "cpu/box/cpu.cfs_quota_us": "300000\n",
                "cpu/box/cpu.cfs_period_us": "100000\n",
                "memory/box/memory.limit_in_bytes": "5000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            3.0,
            5000,
        ),
        ("5:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, None),
        ("", {}, None, None),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, own: str, files: dict[str, str], cores: float | None, memory: int | None
) -> None:
    tree = groups(tmp_path, own, files)
    assert cores_limit(*tree) == cores
    assert memory_limit(*tree) == memory


def test_the_facts_about_this_machine_fit_into_json() -> None:
    facts = json.loads(json.dumps(describe_machine()))
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert 0 < facts["free_memory"] <= facts["memory"]
    assert facts["files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_gpus_are_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559, 550.54'\necho 'NVIDIA H100, 81559, 550.54'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert describe_machine()["gpus"] == [{"name": "NVIDIA H100", "memory_mib": "81559", "driver": "550.54"}] * 2


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b'{"hvdlite": "1"}\n{"problem": ""}\n{"cu', {"hvdlite": "1", "problem": ""}),
        (b'{"hvdlite": "1"}\n', {"problem": "loading it took more than 20 s"}),
        (None, {"problem": "loading it took more than 20 s"}),
    ],
)
def test_what_was_found_before_the_time_was_over_counts(
    said: bytes | None, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes last is of GPUs, whose driver may take long."""

    def run(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 20, said)

    monkeypatch.setattr(subprocess, "run", run)
    assert examine() == found


def test_this_python_has_what_hvdlite_needs() -> None:
    found = examine()
    assert found["problem"] == ""
    assert found["hvdlite"] == __version__
    assert found["has_curve"]
    assert 0 < found["wakeup_us"] <= 2000


def test_a_python_without_hvdlite_says_so(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    problem = examine(str(python))["problem"]
    assert problem.startswith("loading it ended with code 1: ")
    assert "hvdlite" in problem


def test_a_python_that_crashes_after_it_has_told_of_itself_keeps_what_it_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"hvdlite": "1.0"}\'\necho boom >&2\nkill -SEGV $$\n')
    python.chmod(0o755)
    assert examine(str(python)) == {"hvdlite": "1.0", "problem": "loading it ended with code -11: boom"}


def test_a_python_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert examine(str(tmp_path / "python"))["problem"].startswith("No such file or directory")


def test_an_agent_needs_the_standard_library_alone() -> None:
    root = Path(__file__).resolve().parents[2]
    rooms = ("agent", "stream")
    modules = [f"{room}.{path.stem}" for room in rooms for path in (root / "launcher" / room).glob("*.py")]
    assert "agent.agent" in modules
    program = (
        "import importlib, sys, types\n"
        "for name in 'hvdlite', 'hvdlite.launcher':\n"
        "    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = [sys.argv.pop(1)]\n"
        "for module in sys.argv[1:]: importlib.import_module(f'hvdlite.launcher.{module}')\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(root / "hvdlite"), str(root / "launcher"), *modules]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
