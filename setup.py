"""Builds the native library and tags the wheel; everything else about the package is in setup.cfg.

One custom step, `build_native`, is a sub-command of ``build``, so that ``pip install .``, ``pip install -e .``, wheels
and ``setup.py build_native --inplace`` all run it. It turns ``native/{kernels,shm,ring}/**.cc`` into one shared library
that links nothing but libc: it knows no Python, so one wheel serves every CPython. The wheel's platform tag is computed
from the glibc symbols that the library really needs.

Where there is no compiler, the package is built without the library, and says so. It works then, more slowly (see
"ZeroMQ" in docs/dataplanes.md). With ``HVDLITE_REQUIRE_NATIVE=1`` the build fails instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel as BdistWheel
from setuptools.command.build import build as Build

COMPILER = shlex.split(os.environ.get("CXX", "")) or ["g++"]
HAS_COMPILER = shutil.which(COMPILER[0]) is not None
REQUIRES_NATIVE = os.environ.get("HVDLITE_REQUIRE_NATIVE", "") not in ("", "0")
LIBRARY = Path("hvdlite/_native/libhvdlite.so")
SOURCES = sorted(source for part in ("kernels", "page", "ring", "shm") for source in Path("native", part).rglob("*.cc"))
HEADERS = sorted(Path("native").glob("**/*.h"))
CXXFLAGS = shlex.split(
    "-std=c++17 -O3 -g1 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -pthread "
    "-Wall -Wextra -Werror -Inative/include -Inative"
)
# The C++ runtime is linked in; dropping its unused parts also drops their need for the newest glibc.
LDFLAGS = shlex.split(
    "-shared -pthread -static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,--exclude-libs,ALL "
    "-Wl,-z,defs -Wl,--as-needed -ldl"
)

# What manylinux promises to be on every Linux, as far as this library may need it.
PLATFORM_LIBRARIES = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux-[\w-]+)\.so\.\d+")
OLDEST_GLIBC = (2, 17)


class BuildNative(Command):
    """Compiles the native library with ``$CXX`` (default ``g++``); only what changed is compiled again."""

    description = "build the native library"
    user_options: ClassVar = [("inplace", "i", "put the library beside the Python sources")]
    boolean_options: ClassVar = ["inplace"]

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.build_base: str | None = None
        self.editable_mode = False  # set by setuptools for `pip install -e`
        self.inplace = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("build_base", "build_base"))

    def run(self) -> None:
        if not HAS_COMPILER:
            self._go_without()
            return
        # Objects of another compiler or of other flags are other files.
        recipe = hashlib.sha256(repr((COMPILER, CXXFLAGS)).encode()).hexdigest()[:12]
        folder = Path(str(self.build_base)) / f"native-{recipe}"
        objects = {source: folder / "-".join(source.with_suffix(".o").parts[1:]) for source in SOURCES}
        newest_header = max(map(_modified, HEADERS))
        stale = [source for source, made in objects.items() if _modified(made) < max(_modified(source), newest_header)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source: _make(objects[source], [*COMPILER, *CXXFLAGS, "-c", str(source)]), stale))
        # Linking takes a fraction of a second; doing it always leaves no question of what is in the library.
        _make(self._target(), [*COMPILER, *map(str, objects.values()), *LDFLAGS])

    def _go_without(self) -> None:
        """Says that there will be no library, or ends the build where it must not be without one."""
        if REQUIRES_NATIVE or self.inplace:
            sys.exit(
                f"error: hvdlite needs a C++17 compiler and {COMPILER[0]!r} was not found; install g++ (for example "
                "'apt install g++'), or name yours with CXX=..., or install a wheel of hvdlite."
            )
        if not self.editable_mode:
            self._target().unlink(missing_ok=True)  # of an earlier build
        print(
            f"WARNING: hvdlite is built WITHOUT its native library, as the C++17 compiler {COMPILER[0]!r} was not "
            "found: ranks will exchange through ZeroMQ in Python, three to ten times slower and without shared memory. "
            "Install g++ (for example 'apt install g++') or name yours with CXX=..., and install hvdlite again; "
            "HVDLITE_REQUIRE_NATIVE=1 makes this an error.",
            file=sys.stderr,
            flush=True,
        )

    def get_source_files(self) -> list[str]:
        return [str(path) for path in (*SOURCES, *HEADERS)]

    def get_outputs(self) -> list[str]:
        return [str(self._target())] if HAS_COMPILER else []

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def _target(self) -> Path:
        return LIBRARY if self.editable_mode or self.inplace else Path(str(self.build_lib)) / LIBRARY


class BuildWithNative(Build):
    sub_commands: ClassVar = [*Build.sub_commands, ("build_native", None)]


class AnyPythonWheel(BdistWheel):
    """A wheel of every Python 3, and of one platform if the native library is in it."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", _platform_tag(Path(self.bdist_dir) / LIBRARY) if HAS_COMPILER else "any"


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return HAS_COMPILER  # the library belongs to one platform, though it is no extension module of Python


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _make(target: Path, command: list[str]) -> None:
    """Runs ``command -o target``; a process that has the old file mapped keeps it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    print(f"making {target}", flush=True)
    try:
        subprocess.run([*command, "-o", str(fresh)], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"error: '{shlex.join([*command, '-o', str(target)])}' ended with code {error.returncode}; "
            "the compiler's messages are above."
        )
    fresh.replace(target)


def _platform_tag(library: Path) -> str:
    """``manylinux_x_y`` of the newest glibc symbol that ``library`` needs, or ``linux`` where that cannot be told."""
    architecture = sysconfig.get_platform().removeprefix("linux-").replace("-", "_")
    try:
        dump = subprocess.run(
            ["readelf", "--dynamic", "--version-info", "--wide", str(library)],
            env={**os.environ, "LC_ALL": "C"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return f"linux_{architecture}"
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dump)
    if not all(map(PLATFORM_LIBRARIES.fullmatch, needed)):
        return f"linux_{architecture}"
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", dump)
    major, minor = max([OLDEST_GLIBC, *((int(major), int(minor)) for major, minor in versions)])
    return f"manylinux_{major}_{minor}_{architecture}"


setup(
    packages=[
        *find_packages(include=["hvdlite*"]),
        "hvdlite_torch",
        *(f"hvdlite.{name}" for name in find_packages(include=["launcher*"])),
    ],
    distclass=NativeDistribution,
    cmdclass={"build": BuildWithNative, "build_native": BuildNative, "bdist_wheel": AnyPythonWheel},
)
