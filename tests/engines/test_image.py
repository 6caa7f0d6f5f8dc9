"""deploy/Dockerfile without docker: its steps, as far as they need no other system, in a fresh folder for each stage.

What a stage has at its beginning is this Python in an environment of its own. Steps that change the system (packages,
users, owners) are named in `OF_THE_SYSTEM` and left out; all others run. The image itself is not built here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engines.starting import ROOT
from tests.harness.patience import PATIENCE_S

DOCKERFILE = ROOT / "deploy/Dockerfile"
OF_THE_SYSTEM = ("apt-get", "useradd", "install")


@dataclass(slots=True)
class Stage:
    """A stage with its folder: ``root`` stands for ``/``. ``ran`` has the commands that ran, ``left`` the others."""

    root: Path
    environ: dict[str, str]
    workdir: str = "/"
    user: str = "root"
    command: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def path(self, text: str) -> Path:
        """The place of a path of the image."""
        return self.root / str(Path(self.workdir, text)).lstrip("/")

    def run(self, command: str) -> None:
        here = re.sub(r"(?<![\w/.*])/(?=(?:wheels|opt|src)\b)", f"{self.root}/", command)
        self.path(".").mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(
            ["sh", "-ec", here],
            cwd=self.path("."),
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def is_ignored(path: Path) -> bool:
    """True if the build does not see ``path``, relative to the sources."""
    patterns = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split()
    return any(
        pattern.removeprefix("**/") in path.parts if pattern.startswith("**/") else path.is_relative_to(pattern)
        for pattern in patterns
    )


def copy(stages: dict[str, Stage], stage: Stage, words: list[str]) -> None:
    source = ROOT
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, target = words
    for name in names:
        origin = source / name.lstrip("/")
        place = stage.path(target) / origin.name if target.endswith("/") else stage.path(target)
        if origin.is_dir():
            shutil.copytree(
                origin,
                place,
                ignore=lambda folder, found: [
                    each for each in found if source == ROOT and is_ignored(Path(folder, each).relative_to(ROOT))
                ],
            )
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origin, place)


def build(folder: Path) -> dict[str, Stage]:
    """Plays all instructions; raises AssertionError where one fails or is unknown."""
    stages: dict[str, Stage] = {}
    stage = Stage(folder, {})
    for word, rest in instructions():
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "last"
            root = folder / name
            subprocess.run([sys.executable, "-m", "venv", str(root / "python")], check=True)
            clean = {
                each: value for each, value in os.environ.items() if not each.startswith(("PYTHON", "VIRTUAL_ENV"))
            }
            stage = stages[name] = Stage(root, {**clean, "PATH": f"{root}/python/bin:{os.environ['PATH']}"})
        elif word == "WORKDIR":
            stage.workdir = str(Path(stage.workdir, rest))
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stage.environ[name] = value.replace("$PATH", stage.environ["PATH"]).replace("/opt/", f"{stage.root}/opt/")
        elif word == "COPY":
            copy(stages, stage, rest.split())
        elif word == "RUN" and rest.split()[0] in OF_THE_SYSTEM:
            stage.left.append(rest)
        elif word == "RUN":
            for objects in ROOT.glob("build/native-*") if "pip wheel" in rest else ():
                shutil.copytree(objects, stage.path("build") / objects.name)  # only what is stale is compiled again
            stage.run(rest)
            stage.ran.append(rest)
        elif word == "USER":
            stage.user = rest
        elif word == "CMD":
            stage.command = json.loads(rest)
        else:
            pytest.fail(f"{word} {rest}: an instruction that this test does not know", pytrace=False)
    return stages


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    return build(tmp_path_factory.mktemp("image"))


def test_the_last_stage_has_hvdlite_with_its_native_library_and_hvdrun(stages: dict[str, Stage]) -> None:
    last = stages["last"]
    told = subprocess.run(
        last.command, cwd=last.root, env=last.environ, capture_output=True, text=True, check=True
    ).stdout
    assert "native" in told
    program = (
        "import hvdlite as hvd, numpy as np; hvd.init(); print(hvd.__file__, hvd.allreduce(np.ones(2), op=hvd.Sum)[0])"
    )
    ran = subprocess.run(
        ["hvdrun", "-np", "2", "python", "-c", program],
        cwd=last.root, env=last.environ, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert sorted(line.split()[-1] for line in ran.stdout.splitlines()) == ["2.0", "2.0"]
    assert ran.stdout.count(f"{last.root}/opt/train/lib/") == 2


def test_the_last_stage_runs_as_a_user_who_is_not_root_and_has_neither_compiler_nor_sources(
    stages: dict[str, Stage],
) -> None:
    last = stages["last"]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last.user)
    assert f"--uid {last.user.partition(':')[0]} " in "".join(last.left)
    assert not any("apt-get" in command for command in last.left)
    assert not (last.root / "src").exists()


def test_only_these_steps_are_left_out(stages: dict[str, Stage]) -> None:
    assert {name: [command.split()[0] for command in stage.left] for name, stage in stages.items()} == {
        "build": ["apt-get"],
        "last": ["useradd", "install"],
    }
    assert [len(stage.ran) for stage in stages.values()] == [1, 2]
