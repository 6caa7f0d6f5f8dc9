"""``import hvdlite`` is cheap: it imports what every job needs, and what only some need when they first need it."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.patience import PATIENCE_S

# What imports in milliseconds where hvdlite's own modules take tenths of them.
_COSTLY = {
    "asyncio",
    "concurrent",
    "email",
    "http",
    "logging.config",
    "multiprocessing",
    "ssl",
    "subprocess",
    "unittest",
}


def _imported_by(statement: str) -> set[str]:
    """Names of the modules that a fresh process has after ``statement``."""
    program = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True, timeout=PATIENCE_S).split())


def test_importing_the_package_imports_no_framework_and_nothing_costly() -> None:
    # Less what an environment's own start-up files import, too.
    new = _imported_by("import hvdlite; hvdlite.init") - _imported_by("import numpy, zmq")
    packages = {module.split(".")[0] for module in new} - sys.stdlib_module_names
    assert packages <= {"hvdlite", "numpy", "zmq"}
    assert _COSTLY & new == set()


def test_hvdrun_starts_without_numpy_the_engine_and_anything_optional() -> None:
    modules = _imported_by("from hvdlite.launcher import cli")
    assert {"hvdlite.engine", "hvdlite.ops", "hvdlite.session"} & modules == set()
    packages = {module.split(".")[0] for module in modules - _imported_by("pass")} - sys.stdlib_module_names
    assert packages <= {"hvdlite", "click"}


def test_a_public_name_is_imported_when_it_is_first_used() -> None:
    assert "numpy" not in _imported_by(
        "import hvdlite; from hvdlite import errors, native; from hvdlite.host import cgroups"
    )
    for use in ("import hvdlite; hvdlite.allreduce", "from hvdlite import rank", "from hvdlite import *; allreduce"):
        assert {"numpy", "hvdlite.ops.arrays"} <= _imported_by(use), use


def test_a_public_name_that_the_user_replaces_stays_replaced() -> None:
    program = "import hvdlite as hvd; hvd.allreduce = print; hvd.rank; assert hvd.allreduce is print"
    assert "numpy" in _imported_by(program)


def test_hvdrun_imports_the_doctor_only_when_it_is_called() -> None:
    modules = _imported_by("from hvdlite.launcher import cli")
    assert "hvdlite.launcher.doctor.command" in modules
    assert {
        "hvdlite.launcher.doctor.survey",
        "hvdlite.launcher.doctor.findings",
        "hvdlite.launcher.doctor.report",
        "hvdlite.launcher.doctor.surroundings",
    } & modules == set()
