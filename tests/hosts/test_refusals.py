"""Jobs that cannot be: one line names the host, the reason and what to do, and nothing was started anywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.faults import cover, drop, hide
from tests.harness.hosts import ROOT, Network
from tests.hosts.jobs import hvdrun


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[Path]:
    """A folder for ranks to leave a file in; the test fails if any did."""
    folder = tmp_path / "marks"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def refused(network: Network, marks: Path, *options: str, **environment: str) -> str:
    """Returns the one line in which hvdrun refuses a job."""
    ended = hvdrun(network["a"], *options, "sh", "-c", f"touch {marks}/$RANK", **environment)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("hvdrun: ")
    for said in ("Connection refused", "Could not resolve"):
        assert ended.stderr.count(said) == (said in line)
    return line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-H", "a:1,nowhere:1"), ("nowhere", "Could not resolve hostname", "spelling")),
        (("-H", "a:1,b:1", "-p", "2222"), ("b", "Connection refused", "-p")),
        (("-H", "a:1,nobody@b:1"), ("nobody@b", "Permission denied", "ssh-copy-id")),
        (("-H", "a:1,b:1", "--remote-python", "/usr/bin/no-python"), ("b", "--remote-python")),
    ],
)
def test_a_host_that_cannot_be_reached(
    network: Network, marks: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    line = refused(network, marks, *options)
    assert [word for word in words if word not in line] == [], line


def test_a_host_that_does_not_answer(network: Network, marks: Path) -> None:
    with drop(network["c"], source=network["a"]):
        line = refused(network, marks, "-H", "a:1,b:1,c:1", "--ssh-args", "-o ConnectTimeout=2")
    assert "host c" in line or " c:" in line
    assert "timed out" in line


def test_a_changed_host_key(network: Network, marks: Path) -> None:
    known = Path.home() / ".ssh/known_hosts"
    names, *key_of_b = network["a"].check("grep", "^b,", str(known)).split()
    key_of_c = network["a"].check("grep", "^c,", str(known)).split()[1:]
    assert key_of_b != key_of_c
    swapped = " ".join([names, *key_of_c]) + "\n"
    with cover(network["a"], known, swapped):
        line = refused(network, marks, "-H", "a:1,b:1")
    assert "Host key verification failed" in line
    assert "ssh-keygen -R b" in line


def test_a_key_that_is_refused(network: Network, marks: Path) -> None:
    with cover(network["b"], Path.home() / ".ssh/authorized_keys", ""):
        line = refused(network, marks, "-H", "a:1,b:1,c:1")
    assert "Permission denied" in line
    assert "ssh-copy-id" in line


def test_another_version_of_hvdlite(network: Network, marks: Path) -> None:
    version = ROOT / "hvdlite/version.py"
    other = version.read_text().replace("__version__ = ", '__version__ = "9.9.9" or ')
    with cover(network["b"], version, other):
        line = refused(network, marks, "-H", "a:1,b:1")
    assert "9.9.9" in line
    assert "install the same version" in line


def test_a_python_without_hvdlite(network: Network, marks: Path) -> None:
    with hide(network["b"], ROOT / "hvdlite"), hide(network["b"], ROOT / "launcher"):
        line = refused(network, marks, "-H", "a:1,b:1")
    assert " b" in line
    assert "install" in line


def test_no_such_folder_there(network: Network, marks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    command = (sys.executable, "-m", "hvdlite.launcher.cli", "-H", "a:1,b:1", "touch", str(marks / "0"))
    with hide(network["b"], folder.parent):
        ended = network["a"].run(*command, cwd=folder, env={"PYTHONPATH": str(ROOT)})
    assert ended.returncode == 1
    assert str(folder) in ended.stderr
    assert "--sync" in ended.stderr
    assert " b" in ended.stderr


def test_no_such_script_there(network: Network, marks: Path, tmp_path: Path) -> None:
    script = tmp_path / "work" / "train.py"
    script.parent.mkdir()
    script.write_text(f"open({str(marks / '0')!r}, 'w')\n")
    command = (sys.executable, "-m", "hvdlite.launcher.cli", "-H", "a:1,b:1", sys.executable, "work/train.py")
    with hide(network["b"], script.parent):
        ended = network["a"].run(*command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert ended.returncode == 1
    assert f"cannot start on b: there is no file {script}; use --sync" in ended.stderr


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "a;touch x", "b$(touch x)", "b`touch x`", "b touch"])
def test_a_name_that_is_no_name_reaches_no_shell(network: Network, marks: Path, tmp_path: Path, name: str) -> None:
    command = (sys.executable, "-m", "hvdlite.launcher.cli", f"--hosts={name}", "touch", str(marks / "0"))
    ended = network["a"].run(*command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "x").exists()
