"""Usage errors are one line on stderr that says what to do, with exit code 2, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hvdlite.launcher.cli import main
from tests.launcher.hvdrun import python, run

PYTHON = sys.executable
BAD = {
    "no ranks": (["-np", "0", "true"], "it must be at least 1"),
    "negative ranks": (["-np", "-3", "true"], "it must be at least 1"),
    "not a number": (["-np", "four", "true"], "'four' is not a number of processes, as in -np 4 or -np auto."),
    "auto with a capital": (["-np", "Auto", "true"], "'Auto' is not a number of processes, as in -np 4 or -np auto."),
    "auto on each host": (["-ppn", "auto", "true"], "'auto' is not a number of processes, as in -ppn 4."),
    "np behind two dashes": (["--np", "auto", "true"], "the number of processes is -np N, or -np auto"),
    "GPUs that -x names too": (
        ["-np", "1", "--gpus-per-proc", "1", "-x", "CUDA_VISIBLE_DEVICES=0", "true"],
        "--gpus-per-proc sets CUDA_VISIBLE_DEVICES of each rank; leave out -x.",
    ),
    "ranks for other GPUs than -x names": (
        ["-np", "auto", "-x", "CUDA_VISIBLE_DEVICES=0", "true"],
        "leave that out, or give a number.",
    ),
    "one machine's GPUs for two names of it": (
        ["-np", "auto", "-H", "localhost,127.0.0.1", "--gpus-per-proc", "1", "true"],
        "use one name with --gpus-per-proc.",
    ),
    "np without a number": (["-np"], "requires an argument"),
    "an option like torchrun's": (["-nproc", "2", "true"], "-nproc is no option; the number of processes is -np N"),
    "the same with its number": (["-nproc_per_node=2", "true"], "-nproc_per_node is no option"),
    "how many is not said": (["true"], "hvdrun -np 4 python train.py"),
    "no command": (["-np", "2"], "no command was given"),
    "no command after --": (["-np", "2", "--"], "no command was given"),
    "unknown option": (["--nump", "2", "true"], "No such option"),
    "unknown option before the command": (["-np", "2", "--verbos", "true"], "No such option"),
    "unknown short option": (["-np", "2", "-Q", "true"], "No such option"),
    "command not found": (["-np", "2", "no-such-program"], "'no-such-program' was not found"),
    "path not found": (["-np", "2", "./no/such/program"], "'./no/such/program' was not found"),
    "a script without its interpreter": (["-np", "2", "train.py"], "write python train.py"),
    "a command in quotes": (["-np", "2", "python3 train.py --lr 1"], "without quotes: python3 train.py --lr 1."),
    "a line of shell in quotes": (["-np", "2", "cd x && python3 a.py"], "write sh -c 'cd x && python3 a.py'."),
    "a variable and a command in quotes": (["-np", "2", "A=1 python3 a.py"], "write sh -c 'A=1 python3 a.py'."),
    "a word with a space that is no command": (["-np", "2", "no such program"], "'no such program' was not found"),
    "a path with a space": (["-np", "2", "/no/my program (1)"], "'/no/my program (1)' was not found"),
    "not executable": (["-np", "2", "./notes"], "chmod +x ./notes"),
    "more ranks than slots": (["-np", "3", "-H", "localhost:2", "true"], "3 ranks do not fit into the 2 slots"),
    "bad host": (["-np", "1", "-H", "localhost:x", "true"], "'localhost:x' is not a host"),
    "host file as hosts": (["-np", "1", "-H", "./hosts", "true"], "did you mean --hostfile ./hosts?"),
    "a host that is an option": (["-np", "1", "-H", "-oProxyCommand=x", "true"], "is not a host"),
    "a host with a command": (["-np", "1", "-H", "a;touch x", "true"], "is not a host"),
    "no port": (["-np", "1", "-p", "99999", "true"], "99999"),
    "no key": (["-np", "1", "-i", "missing", "true"], "there is no file 'missing'"),
    "no words": (["-np", "1", "--ssh-args", "-o 'x", "true"], "cannot be split into words"),
    "no range": (["-np", "1", "--port-range", "9-5", "true"], "'9-5' is not a range of ports"),
    "a plan for a host that may have any cores": (["-H", "a,b:2", "--dry-run", "true"], "and GPUs of a are unknown"),
    "one host more, behind a space": (["-H", "a:2", "b:2", "true"], "no spaces: -H a:2,b:2"),
    "a space after the comma": (["-H", "a,", "b", "true"], "no spaces: -H a,b"),
    "hosts with spaces and without slots": (["-H", "a", "b", "c", "true"], "no spaces: -H a,b,c"),
    "torchrun's number of processes": (["--nproc-per-node", "2", "true"], "is -np N, or -ppn N"),
    "the same in its other spelling": (["--nproc_per_node=2", "true"], "is -np N, or -ppn N"),
    "a script that is not there": (["-np", "2", "python3", "-u", "-W", "ignore", "trian.py"], "did you mean train.py?"),
    "one that is nothing like any": (
        ["-np", "2", "--dry-run", "python3", "x/y.py", "train.py"],
        "no file 'x/y.py' in /",
    ),
    "a long option behind one dash": (["-host", "a,b", "true"], "'-host'. Did you mean '--hosts'?"),
    "hosts of the doctor without -H": (["doctor", "a,b", "c"], "hvdrun doctor -H a,b,c"),
    "a mistyped command of hvdrun": (["doktor", "-H", "a"], "did you mean hvdrun doctor?"),
    "two letters of one exchanged": (["tpo"], "did you mean hvdrun top?"),
    "help for a mistyped one": (["help", "docter"], "there is no command 'docter'; did you mean doctor?"),
    "a command for hvdrun to ignore": (["--install-horovodrun", "-np", "2", "true"], "take no command"),
    "a command of hvdrun behind an option": (["-H", "a", "doctor"], "own command first: hvdrun doctor"),
    "hosts and no program": (["-H", "a", "b"], "hvdrun -H a,b python train.py"),
    "an option as a command": (["settings"], "did you mean hvdrun --settings?"),
    "the same, mistyped": (["setings"], "did you mean hvdrun --settings?"),
    "options behind the program": (
        ["python3", "train.py", "-np", "2", "--lr", "1"],
        "come before the program: hvdrun -np 2 python3 train.py --lr 1.",
    ),
    "options in front of the script": (["python3", "-np", "2", "train.py"], "hvdrun -np 2 python3 train.py."),
    "auto behind the program": (["python3", "train.py", "-np", "auto"], "hvdrun -np auto python3 train.py."),
    "the same in one word": (["python3", "train.py", "-np4"], "hvdrun -np 4 python3 train.py."),
    "a script and nothing else": (["train.py"], "write python train.py"),
    "an option of other programs": (["--list"], "hvdrun --help lists the options"),
    "a module that is not there": (["-np", "2", PYTHON, "-m", "nosuchmodule.main"], "has no module 'nosuchmodule'"),
    "the same behind options": (["-np", "2", PYTHON, "-u", "-W", "ignore", "-Bmnosuchmodule"], "no module 'nosuch"),
    "missing host file": (["-np", "1", "--hostfile", "missing", "true"], "missing cannot be read"),
    "hosts twice": (["-np", "1", "-H", "localhost:1", "--hostfile", "f", "true"], "exclude each other"),
    "unset variable": (["-np", "1", "-x", "NO_SUCH_VARIABLE", "true"], "-x NO_SUCH_VARIABLE=VALUE"),
    "no variable": (["-np", "1", "-x", "1=2", "true"], "is not NAME or NAME=VALUE"),
    "bad setting": (["-np", "1", "-x", "HVDLITE_PLANE=fast", "true"], "HVDLITE_PLANE='fast' must be one of"),
    "a grace period that is no number": (["-np", "2", "--grace", "nan", "true"], "'--grace': nan is not a number of"),
    "an endless grace period": (["-np", "2", "--grace", "inf", "true"], "'--grace': inf is not in the range"),
    **{
        f"{option} without a name": (words, f"'{option}': the name is empty.")
        for option, words in {
            "--output-filename": ["-np", "1", "--output-filename", "", "true"],
            "--config-file": ["-np", "1", "--config-file", "", "true"],
            "--secret-file": ["-np", "1", "--secret-file", "", "true"],
            "--torch": ["blackbox", "--torch", ""],
            "--svg": ["top", "--svg", ""],
            "--picture": ["timeline", "notes", "--picture", ""],
        }.items()
    },
    "log folder is a file": (["-np", "1", "--output-filename", "notes", "true"], "notes cannot be used"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "notes").write_text("hello\n")
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD[name]
    assert main(arguments) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("hvdrun: ")
    assert message in shown.err


def test_a_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["-np", "1", "true"]) == 2
    assert "the working directory was removed" in capfd.readouterr().err


def test_a_mistyped_setting_is_one_line_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HVDLITE_PEER_TIMOUT", "9")
    assert main(["-np", "1", "--dry-run", "true"]) == 0
    line = "hvdrun: there is no setting HVDLITE_PEER_TIMOUT; did you mean HVDLITE_PEER_TIMEOUT?\n"
    assert capfd.readouterr().err == line


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-c", "pass", "missing.py"],
        ["python3", "-m", "this", "missing.py"],
        ["python3", "-uc", "pass"],
        ["python3", "-"],
        ["python3"],
        ["python3", "--version", "-W", "ignore", "train.py", "missing.py"],
        ["sh", "missing.py"],
        ["true", "-np2"],
        [PYTHON, "train.py", "-m", "nosuchmodule"],
        [PYTHON, "-m", "train"],
        [PYTHON, "-m", "package.main"],
        [PYTHON, "-m", "other"],
        [PYTHON, "-m", "sys"],
        [PYTHON, "-Im", "nosuchmodule"],
        [PYTHON, "-c", "pass", "-m", "nosuchmodule"],
        ["./python", "-m", "nosuchmodule"],
    ],
)
def test_what_may_be_right_is_not_refused(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    for name in ("package", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere/other.py").touch()
    (tmp_path / "python").symlink_to("/bin/true")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert main(["-np", "1", "--dry-run", *command]) == 0


@pytest.mark.parametrize(("words", "usage"), [([], "Usage: hvdrun [OPTIONS]"), (["doctor"], "Usage: hvdrun doctor")])
def test_help_is_a_word_too(words: list[str], usage: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *words]) == 0
    assert capfd.readouterr().out.startswith(usage)


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_host_without_a_rank_is_told(is_dry: bool, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["-np", "2", "-H", "localhost:2,far:2", *(["--dry-run"] if is_dry else []), "true"]
    assert main(words) == 0
    assert capfd.readouterr().err == "hvdrun: no rank runs on far: localhost can take all 2\n"


@pytest.mark.parametrize(
    ("hosts", "count"), [("localhost,127.0.0.1:2", 2), ("localhost:1,localhost:1", 0), ("far:1,localhost:1", 0)]
)
def test_two_names_of_this_machine_are_told(hosts: str, count: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "-H", hosts, "--dry-run", "true"]) == 0
    told = [line for line in capfd.readouterr().err.splitlines() if "one machine" in line]
    line = "hvdrun: localhost and 127.0.0.1 are one machine, this one, and count as 2 hosts; localhost:N is one host"
    assert told == ([line] if count else [])


def test_horovod_where_it_is_not_lent_is_a_hint_in_the_box() -> None:
    ended = run("--no-horovod-compat", "-np", "1", sys.executable, "-c", "import horovod.torch")
    assert ended.returncode == 1
    assert "| hint: 'import horovod' means hvdlite in a Python that has hvdlite, unless --no-" in ended.stderr
    ended = run("-np", "1", *python("raise SystemExit('you want horovod, but Horovod is not installed.')"))
    assert "| hint: hvdrun --horovod-compat makes 'import horovod' mean hvdlite wherever it is tried\n" in ended.stderr
    ended = run("-np", "1", sys.executable, "-c", "import nosuchmodule")
    assert "hint" not in ended.stderr
