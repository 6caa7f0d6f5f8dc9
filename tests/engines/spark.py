"""A local cluster of Spark with two executors, each in a process of its own with one slot."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness.patience import until
from tests.hosts.nodes import free_port

needs_spark = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None or shutil.which("java") is None,
    reason="Spark is missing; install pyspark and Java (openjdk-17-jre-headless)",
)

SETTINGS = {
    "spark.master": "local-cluster[2,1,1024]",  # with less memory Spark refuses its executors
    "spark.driver.host": "localhost",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}

# Three Java machines start for a minute of work.
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


class Home:
    """A folder that stands in for ``SPARK_HOME``, so that Spark's settings, logs and events are in it.

    ``was_shown`` tells whether `stored` has seen the pages of a driver.
    """

    def __init__(self, folder: str) -> None:
        package = Path(*(importlib.util.find_spec("pyspark").submodule_search_locations or []))  # type: ignore[union-attr]
        self.folder = Path(folder)
        self.was_shown = False
        for name in ("bin", "jars", "sbin", "python"):
            (self.folder / name).symlink_to(package / name)
        for name in ("conf", "events", "local"):
            (self.folder / name).mkdir()
        self._port = free_port()
        told = {**SETTINGS, "spark.ui.port": str(self._port), "spark.eventLog.dir": f"file://{self.folder}/events"}
        lines = [f"{name} {value}\n" for name, value in told.items()]
        (self.folder / "conf/spark-defaults.conf").write_text("".join(lines))

    @property
    def environment(self) -> dict[str, str]:
        """What the driver is to have in its environment."""
        return {
            "SPARK_HOME": str(self.folder),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_HOSTNAME": "localhost",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "JDK_JAVA_OPTIONS": " ".join([*FAST_START, f"-Djava.io.tmpdir={self.folder}/local"]),
        }

    def stored(self) -> str:
        """Everything that Spark has written, and what it shows while the driver runs."""
        return "\n".join([*self._written(), *self._shown()])

    def _written(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.folder):  # which goes on where Spark removes a folder meanwhile
            for name in names:
                with suppress(OSError):
                    yield Path(folder, name).read_text(errors="replace")

    def _shown(self) -> Iterator[str]:
        with suppress(OSError):  # the driver has ended, or its pages are off
            yield (applications := self._get("api/v1/applications"))
            number = applications.split('"id" : "')[1].split('"')[0]
            for page in ("environment", "jobs", "stages?details=true", "allexecutors", "logs"):
                with suppress(urllib.error.HTTPError):
                    yield self._get(f"api/v1/applications/{number}/{page}")
            yield self._get("environment/")
            self.was_shown = True

    def _get(self, page: str) -> str:
        with urllib.request.urlopen(f"http://localhost:{self._port}/{page}", timeout=10) as answer:
            return str(answer.read().decode(errors="replace"))


@contextmanager
def spark_home() -> Iterator[Home]:
    """A `Home` for the drivers that are started meanwhile."""
    folder = tempfile.mkdtemp(prefix="spark-")
    try:
        home = Home(folder)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in home.environment.items():
                patch.setenv(name, value)
            yield home
    finally:
        until(lambda: _is_removed(folder))


def _is_removed(folder: str) -> bool:
    """Removes ``folder``, into which an ending Java machine may still write."""
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)
