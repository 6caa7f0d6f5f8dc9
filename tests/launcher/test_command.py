"""The form of the command line: help in sections, other commands by the first word, and completion in shells."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hvdlite.launcher.cli import hvdrun, main
from hvdlite.launcher.options.command import SECTIONS, sections
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import run


def test_help_lists_every_shown_option_in_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    titles = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == [*SECTIONS, "Other commands"]
    words = {word.rstrip(",") for line in lines for word in line.split()}
    shown = [option for option in hvdrun.params if isinstance(option, click.Option) and not option.hidden]
    assert {name for option in shown for name in (*option.opts, *option.secondary_opts)} <= words
    assert {"--autotune", "--min-np"}.isdisjoint(words)


def test_an_option_without_a_section_is_not_lost() -> None:
    listed, new = click.Option(["--settings"]), click.Option(["--new"])
    assert sections([new, listed]) == {"About": [listed], "Other": [new]}


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "hvdlite", "-np", "1", "--dry-run", "true"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("1 rank(s) on 1 host(s)\n")


@pytest.mark.parametrize("words", [("-np", "1", "completion"), ("-np", "1", "--", "completion")], ids=" ".join)
def test_a_program_may_have_the_name_of_another_command(words: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / "completion"
    program.write_text("#!/bin/sh\necho it is mine\n")
    program.chmod(0o755)
    ended = run(*words, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert ended.stdout == "[0]<stdout>:it is mine\n", ended.stderr


def test_another_command_has_its_own_help_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "-h"]) == 0
    assert capsys.readouterr().out.startswith("Usage: hvdrun completion [OPTIONS] ")
    assert main(["completion", "tcsh"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in told.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_HVDRUN_COMPLETE={shell}_complete" in capsys.readouterr().out


def _completed(line: str) -> set[str]:
    """Returns bash's completions of the last word of ``line``, with hvdrun's script loaded."""
    words = line.split(" ")
    program = f"""
        eval "$(hvdrun completion bash)"
        COMP_WORDS=({" ".join(shlex.quote(word) for word in words)}) COMP_CWORD={len(words) - 1}
        compopt() {{ echo "its own $2"; }}
        "$(complete -p hvdrun | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" hvdrun
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        ["bash", "-c", program], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.stderr == ""
    return set(ended.stdout.split("\n")) - {""}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hvdrun --stall-check-", {"--stall-check-warning-time-seconds", "--stall-check-shutdown-time-seconds"}),
        ("hvdrun -np 2 --fus", {"--fusion-threshold-mb"}),
        ("hvdrun --gpus", {"--gpus-per-proc"}),
        ("hvdrun --autot", set()),
        ("hvdrun compl", {"completion"}),
        ("hvdrun completion f", {"fish"}),
        ("hvdrun -np 2 compl", {"its own default"}),
        ("hvdrun -np 2 python --fus", {"its own default"}),
        ("hvdrun --config-file ", {"its own default"}),
        ("hvdrun --hostfile ", {"its own default"}),
    ],
)
def test_bash_completes(line: str, offered: set[str]) -> None:
    assert _completed(line) == offered
