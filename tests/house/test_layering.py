"""Imports run downwards only, and each of threads, the environment and the frameworks has one place."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import ROOT, files, module_name

FRONT_ENDS = {"torch", "tensorflow", "keras", "jax"}
NAME_HOROVODS_MODULES = {  # and import one when a program asks for it
    *("hvdlite/compat/names.py", "hvdlite/compat/finder.py", "hvdlite/tensorflow/__init__.py"),
}
THE_ONE_CIRCLE = {"hvdlite/tensorflow", "hvdlite/tensorflow/optimizer", "hvdlite/keras"}


def _floors() -> list[list[str]]:
    """The folders of each row of the table in docs/architecture.md, from top to bottom."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("\n| folder | contents |\n|---|---|\n")[2].partition("\n\n")[0]
    return [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in table.splitlines()]


FLOORS = _floors()
LEVEL = {name: -level for level, names in enumerate(FLOORS) for name in names}
LAUNCHER_MAY_IMPORT = {
    "hvdlite/blackbox",
    "hvdlite/compat",
    "hvdlite/cuda",
    "hvdlite/errors.py",
    "hvdlite/host",
    "hvdlite/launched_by",
    "hvdlite/log.py",
    "hvdlite/members",
    "hvdlite/metrics",
    "hvdlite/negotiation/delays",
    "hvdlite/net",
    "hvdlite/observe/timeline",
    "hvdlite/rendezvous",
    "hvdlite/scope.py",
    "hvdlite/settings.py",
    "hvdlite/version.py",
}
FRONT_ENDS_MAY_IMPORT = {
    *("hvdlite/ops", "hvdlite/public", "hvdlite/session.py", "hvdlite/training"),
    *("hvdlite/compat", "hvdlite/dynamo.py", "hvdlite/errors.py", "hvdlite/log.py", "hvdlite/settings.py"),
}
PUBLIC_MAY_IMPORT = FRONT_ENDS_MAY_IMPORT | {"hvdlite/builds.py", "hvdlite/running", "hvdlite/version.py"}
MAY_IMPORT_LAUNCHER = ("__main__", "running", "hosted", "horovod", "bench")
PURE_PARTS_MUST_NOT_IMPORT = {
    "threading",
    "socket",
    "zmq",
    "os",
    "time",
    "subprocess",
    "selectors",
    "asyncio",
    "pathlib",
}
PURE = {"tensors", "members", "negotiation"}
# The reconnector's thread and the watcher's belong to a data plane and live no longer.
MAY_START_THREADS = (
    "hvdlite.engine",
    "hvdlite.groups.group",
    "hvdlite.observe.recorder",
    "hvdlite.rendezvous.lookout",
    "hvdlite.rendezvous.server",
    "hvdlite.launcher",
    "hvdlite.planes.ring.reconnector",
    "hvdlite.planes.nccl.watcher",
    "hvdlite.spark.stage",
    "hvdlite.observe.timeline.recording",
    "hvdlite.torch.distributed.work",
)
# What NVIDIA's libraries, the dynamic linker, guests and scripts read is no setting of hvdlite's.
MAY_READ_ENVIRONMENT = (
    "hvdlite.settings",
    "hvdlite.cuda.presence",
    "hvdlite.cuda.loading",
    "hvdlite.planes.nccl.offers",
    "hvdlite.launcher",
    "hvdlite.bench",
    "hvdlite.compat",
    "hvdlite.running.caller",
    "hvdlite.hosted.joining",
    "hvdlite.horovod.checks",
    "hvdlite.torch.door",  # imports nothing of hvdlite
)

SOURCES = [path for path in files(".py") if path.parts[0] in ("hvdlite", "launcher")]
PATHS = {module_name(path): path for path in SOURCES}


def imports_of(path: Path) -> Iterator[str]:
    """The absolute names of all modules that the file imports: inside functions, for type checking, by name too."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    source = (ROOT / path).read_text()
    imports_by_name = "import_module" in source and path.as_posix() not in NAME_HOROVODS_MODULES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*package[: len(package) - node.level + 1], node.module or ""]) if node.level else node.module
            )
            base = (base or "").strip(".")
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in PATHS else base
        elif imports_by_name and isinstance(node, ast.Constant) and node.value in PATHS and "." in node.value:
            yield node.value


def part_of(module: str) -> str:
    """The part of the house that a module is in: ``net`` for ``hvdlite.net.wake``, empty for hvdlite itself."""
    return [*module.split("."), ""][1]


def place_of(module: str) -> str:
    """The file or folder of ``module`` in the table. Raises KeyError if there is none."""
    path = PATHS[module]
    place = str(path) if str(path) in LEVEL else str(path.parent)
    if place not in LEVEL:
        raise KeyError(f"{path} has no row in the table of docs/architecture.md")
    return place


def complaints() -> Iterator[str]:
    for path in SOURCES:
        importer = module_name(path)
        for imported in imports_of(path):
            if (reason := _forbidden(importer, imported)) is not None:
                yield f"{path} imports {imported}: {reason}"


def _forbidden(importer: str, imported: str) -> str | None:
    part, top = part_of(importer), imported.split(".")[0]
    if part not in FRONT_ENDS and part != "bench" and top in FRONT_ENDS:
        return "only front ends know a framework"
    if part in PURE and top in PURE_PARTS_MUST_NOT_IMPORT:
        return f"{part} has no threads, sockets, files, clocks or environment"
    if top != "hvdlite":
        return None
    if part_of(imported) == "launcher" and part not in ("launcher", *MAY_IMPORT_LAUNCHER):
        return "nobody imports the launcher but those who start it, and the benchmark"
    below, above = place_of(imported), place_of(importer)
    if below == above or {below, above} <= THE_ONE_CIRCLE:
        return None
    if part == "launcher" and not below.startswith("launcher") and below not in LAUNCHER_MAY_IMPORT:
        return "the launcher imports only " + ", ".join(sorted(LAUNCHER_MAY_IMPORT))
    if part in FRONT_ENDS and part_of(imported) not in FRONT_ENDS and below not in FRONT_ENDS_MAY_IMPORT:
        return "front ends import only " + ", ".join(sorted(FRONT_ENDS_MAY_IMPORT))
    if part == "public" and below not in PUBLIC_MAY_IMPORT:
        return "the names of all front ends come only from " + ", ".join(sorted(PUBLIC_MAY_IMPORT))
    if LEVEL[below] >= LEVEL[above]:
        return f"imports run downwards only, and {below} is not below {above}"
    return None


def test_imports_run_downwards_only() -> None:
    assert list(complaints()) == []


def test_every_library_that_is_imported_is_a_requirement() -> None:
    """Of every installation, or of an extra; libraries that only tests need are neither."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    lines = [setup["options"]["install_requires"], *(extras[name] for name in extras if name not in ("test", "dev"))]
    required = {re.split(r"[<>=]", line)[0] for text in lines for line in text.split()}
    optional = {"packaging", "typing_extensions"}  # a helper of Horovod, whose users have it; type checkers have it
    imported_as = {"pyzmq": "zmq"}
    allowed = {"hvdlite", *sys.stdlib_module_names, *(imported_as.get(name, name) for name in required), *optional}
    unknown = {(str(path), name) for path in SOURCES for name in imports_of(path) if name.split(".")[0] not in allowed}
    assert unknown == set()


def test_the_table_has_one_row_for_every_folder_and_no_other() -> None:
    assert {place_of(module) for module in PATHS} == set(LEVEL)
    assert len(LEVEL) == sum(map(len, FLOORS))


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not inside functions either, except in the one circle of folders."""
    left = {
        module: {other for other in imports_of(path) if other in PATHS and not _closes_the_circle(module, other)}
        for module, path in PATHS.items()
    }
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []


def _closes_the_circle(importer: str, imported: str) -> bool:
    places = place_of(importer), place_of(imported)
    return importer == imported or (set(places) <= THE_ONE_CIRCLE and LEVEL[places[1]] > LEVEL[places[0]])


def _users_of(words: tuple[str, ...], allowed: tuple[str, ...]) -> list[str]:
    others = [path for path in SOURCES if not module_name(path).startswith(allowed)]
    return [str(path) for path in others if any(word in (ROOT / path).read_text() for word in words)]


def test_only_settings_reads_the_environment() -> None:
    assert _users_of(("os.environ", "os.getenv"), MAY_READ_ENVIRONMENT) == []


def test_only_the_engine_starts_threads() -> None:
    assert _users_of(("Thread(", "Timer(", "ThreadPool"), MAY_START_THREADS) == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("hvdlite.negotiation.fuse", "hvdlite.engine.executor"),
        ("hvdlite.negotiation.fuse", "threading"),
        ("hvdlite.planes.shm.plane", "hvdlite.session"),
        ("hvdlite.launcher.cli", "hvdlite.negotiation.fuse"),
        ("hvdlite.session", "hvdlite.launcher.cli"),
        ("hvdlite.ops.objects", "torch"),
        ("hvdlite.torch", "hvdlite.tensorflow"),
        ("hvdlite.session", "hvdlite.ops.objects"),
        ("hvdlite.torch.broadcasting", "hvdlite.engine.executor"),
        ("hvdlite.jax", "hvdlite.negotiation.wire"),
        ("hvdlite.public.timelines", "hvdlite.engine.apart"),
        ("hvdlite.ops.objects", "hvdlite.running.functions"),
        ("hvdlite.planes.ring.plane", "hvdlite.planes.shm.plane"),
        ("hvdlite.groups.group", "hvdlite.observe.timeline"),
        ("hvdlite.launcher.stream.loop", "hvdlite.launcher.agents.link"),
        ("hvdlite.launcher.agent.agent", "hvdlite.launcher.where.hosts"),
    ],
)
def test_the_table_forbids_what_it_should(importer: str, imported: str) -> None:
    assert _forbidden(importer, imported) is not None
