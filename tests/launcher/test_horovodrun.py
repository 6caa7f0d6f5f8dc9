"""The command ``horovodrun``: beside hvdrun if the user wants it, and on the PATH of ranks; Horovod's own stays."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.compat import COMMANDS
from hvdlite.launcher.cli import main
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import run
from tests.launcher.test_horovod_compat import environment_by

_OURS = Path(COMMANDS, "horovodrun")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with an hvdrun that shows its arguments, which is the one that was called."""
    folder = tmp_path / "bin with space"
    folder.mkdir()
    (folder / "hvdrun").write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
    (folder / "hvdrun").chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(folder / "hvdrun")])
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    return folder


def _called(*command: str | Path, **environment: str) -> tuple[int, str, str]:
    ended = subprocess.run(
        [*command, "-np", "2", "a b"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_it_comes_and_goes(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = programs / "horovodrun"
    for _ in range(2):  # an older one of hvdlite's is replaced
        assert main(["--install-horovodrun"]) == 0
        assert capfd.readouterr() == (f"{command} is hvdrun --horovod-compat\n", "")
    assert _called(command) == _called("horovodrun") == (7, "--horovod-compat|-np|2|a b|", "")
    assert sorted(os.listdir(programs)) == ["horovodrun", "hvdrun"]
    for text in ("is removed", "there is no"):
        assert main(["--uninstall-horovodrun"]) == 0
        assert text in capfd.readouterr().out
    assert os.listdir(programs) == ["hvdrun"]


def test_what_is_not_hvdlites_stays(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = programs / "horovodrun"
    command.write_text("#!/bin/sh\n# Horovod's own\n")
    for option in ("--install-horovodrun", "--uninstall-horovodrun"):
        assert main([option]) == 2
        assert f"{command} is not of hvdlite" in capfd.readouterr().err
    assert command.read_text() == "#!/bin/sh\n# Horovod's own\n"
    command.unlink()
    command.symlink_to("nowhere")
    assert main(["--install-horovodrun"]) == 2
    assert command.is_symlink()


def test_the_user_learns_where_it_is_not_found(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--install-horovodrun"]) == 0
    assert f"{programs} is not on PATH; add it\n" in capfd.readouterr().out
    (first := tmp_path / "horovodrun").write_text("#!/bin/sh\n")
    first.chmod(0o755)
    assert main(["--install-horovodrun"]) == 0
    assert f"PATH has {first} before it\n" in capfd.readouterr().out


def test_a_folder_that_cannot_be_written_is_one_sentence(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/proc/self/hvdrun"])  # where root may not write either
    assert main(["--install-horovodrun"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hvdrun: /proc/self/horovodrun cannot be written: ")
    assert f"ln -s {_OURS} " in line


def test_a_link_to_it_finds_hvdrun_and_says_if_there_is_none(programs: Path, tmp_path: Path) -> None:
    (link := tmp_path / "horovodrun").symlink_to(_OURS)
    assert _called(link) == (7, "--horovod-compat|-np|2|a b|", "")
    assert main(["--install-horovodrun"]) == 0
    link.unlink()
    link.symlink_to(programs / "horovodrun")
    assert _called(link, PATH=os.defpath) == (7, "--horovod-compat|-np|2|a b|", "")
    (programs / "hvdrun").unlink()
    code, out, err = _called(link, PATH=os.defpath)
    assert (code, out) == (127, "")
    assert err.startswith(f"horovodrun: hvdrun is neither beside {programs / 'horovodrun'} nor on PATH; ")


def test_ranks_find_it_on_their_path_where_the_name_is_lent(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.environ["PATH"]
    lent = environment_by()["PATH"]
    assert lent == f"{mine}:{COMMANDS}"
    assert environment_by("--horovod-compat")["PATH"] == f"{COMMANDS}:{mine}"
    assert environment_by("--no-horovod-compat")["PATH"] == mine
    monkeypatch.setenv("PATH", lent)  # as in a rank
    assert environment_by()["PATH"] == lent
    assert environment_by("--no-horovod-compat")["PATH"] == mine
    monkeypatch.setenv("PATH", os.defpath)
    assert environment_by()["PATH"] == f"{os.defpath}:{programs}:{COMMANDS}"


def test_a_rank_calls_it() -> None:
    show = "import horovod, os; print(horovod.__version__, os.environ['HVDLITE_SIZE'])"
    ended = run("-np", "1", "sh", "-c", f'exec horovodrun -np 2 {shlex.quote(sys.executable)} -c "{show}"')
    lines = sorted(line.removeprefix("[0]<stdout>:") for line in ended.stdout.splitlines())
    assert lines == [f"[{rank}]<stdout>:0.28.1 2" for rank in range(2)], ended.stderr
