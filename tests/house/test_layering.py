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

# From the lowest to the highest. A module belongs to the longest name here that its own begins with. It may import what
# belongs to the same name, and any layer before its own: names of one layer do not know each other.
LAYERS = [
    {
        "errors",
        "log",
        "version",
        "compat",
        "observe.cgroups",
        "observe.untrusted",
        "untraced",
        "publish",
        "horovod.elastic",
        "metrics",
        "scope",
    },
    {"observe.blackbox"},
    {"observe.times", "observe.calls"},
    {"net", "tensors", "members", "native"},
    {"observe.counters"},
    {"negotiation", "launched_by", "cuda"},
    {"settings"},
    {"launched_by.presence", "tracebacks", "spin"},
    {"launched_by.stopped"},
    {"rendezvous"},
    {"planes.shm.segment", "planes.shm.free_list", "planes.arithmetic"},
    {"planes.shm.arena"},
    {"planes.base"},
    {"planes.neighbours"},
    {"planes.gpu", "planes.local", "planes.hierarchical", "planes.adasum", "planes.shm", "planes.ring", "planes.zmq"},
    {"planes.nccl", "planes.staged"},
    {"planes", "control", "builds"},
    {"engine"},
    {"observe.timeline.file"},
    {"observe.timeline"},
    {"observe"},
    {"session"},
    {"ops", "process_sets", "timelines"},
    {"training", "public_names"},
    {"launcher.stream"},
    {"launcher.agent"},  # and the standard library: tests/launcher/test_machine.py
    {"launcher.endings", "launcher.hosts"},
    {"launcher.allocation", "launcher.hostlists"},
    {"launcher.spawners"},
    {"launcher.agents"},
    {"launcher.network", "launcher.nodes"},
    {"launcher.job.plan", "launcher.job.supervisor"},
    {"launcher.options", "launcher.screen", "launcher.monitor"},
    {"launcher.job", "launcher.doctor", "launcher.timeline", "launcher.top"},
    {"launcher.blackbox"},
    {"launcher"},
    {"running"},
    {"hosted"},
    {"numpy_api"},
    {""},  # hvdlite/__init__.py, the numpy API
    {"jax"},
    {"torch.compression"},
    {"torch.collectives"},
    {"torch.memory"},
    {"torch.optimizer"},
    {"tensorflow.errors", "tensorflow.compression", "tensorflow.autograph"},
    {"tensorflow.operation"},
    {"tensorflow.collectives"},
    {"tensorflow.optimizer"},
    {"torch", "tensorflow"},
    {"keras"},
    {"tensorflow.keras"},
    {"bench", "ray", "spark", "dask"},
    {"horovod", "__main__"},
    {"tensorflow.mpi_ops"},
]
# Where these will stand, once they are there.
PLANNED: set[str] = set()
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LAUNCHER_MAY_IMPORT = (
    "errors",
    "settings",
    "launched_by",
    "log",
    "version",
    "metrics",
    "observe.cgroups",
    "observe.blackbox",
    "observe.calls",
    "observe.times",
    "observe.counters",
    "compat",
    "cuda.presence",
    "net",
    "rendezvous",
    "scope",
    "members.ranges",
    "members.topology",
    "negotiation.delays.circle",
    "observe.timeline.file",
    "observe.untrusted",
)
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
)

SOURCES = [path for path in files(".py") if path.parts[0] in ("hvdlite", "launcher")]


def imports_of(path: Path) -> Iterator[str]:
    """The absolute names of all modules that the file imports, also inside functions and for type checking."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    known = {module_name(source) for source in SOURCES}
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*package[: len(package) - node.level + 1], node.module or ""]) if node.level else node.module
            )
            base = (base or "").strip(".")
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in known else base


def part_of(module: str) -> str:
    """The part of the house that a module is in: ``net`` for ``hvdlite.net.wake``, empty for hvdlite itself."""
    return [*module.split("."), ""][1]


def place_of(module: str) -> str:
    """The name in LAYERS that ``module`` belongs to. Raises KeyError if there is none."""
    name = module.removeprefix("hvdlite").removeprefix(".")
    while name not in LEVEL:
        if "." not in name:
            raise KeyError(f"{module} has no place among the layers")
        name = name.rpartition(".")[0]
    return name


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
    target = part_of(imported)
    if part == "launcher":
        inner = imported.removeprefix("hvdlite.")
        allowed = target == "launcher" or any(
            inner == name or inner.startswith(name + ".") for name in LAUNCHER_MAY_IMPORT
        )
        if not allowed:
            return "the launcher imports only " + ", ".join(LAUNCHER_MAY_IMPORT)
    elif target == "launcher" and part not in MAY_IMPORT_LAUNCHER:
        return "nobody imports the launcher but those who start it, and the benchmark"
    below, above = place_of(imported), place_of(importer)
    if below != above and LEVEL[below] >= LEVEL[above]:
        return f"imports run downwards only, and {below or 'hvdlite'} is not below {above or 'hvdlite'}"
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


def test_every_place_is_there_or_planned() -> None:
    modules = [module_name(path) for path in SOURCES]
    assert set(LEVEL) - {place_of(module) for module in modules} == PLANNED


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not inside functions either."""
    left = {module_name(path): set(imports_of(path)) - {module_name(path)} for path in SOURCES}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []


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
        ("hvdlite.groups.sets", "hvdlite.session"),
        ("hvdlite.session", "hvdlite.ops.objects"),
        ("hvdlite.ops.objects", "hvdlite.running.functions"),
        ("hvdlite.planes.ring.plane", "hvdlite.planes.shm.plane"),
        ("hvdlite.groups.group", "hvdlite.observe.timeline"),
        ("hvdlite.launcher.stream.loop", "hvdlite.launcher.agents.link"),
        ("hvdlite.launcher.agent.agent", "hvdlite.launcher.hosts"),
    ],
)
def test_the_table_forbids_what_it_should(importer: str, imported: str) -> None:
    assert _forbidden(importer, imported) is not None
