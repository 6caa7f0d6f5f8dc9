"""The driver's side of `hvdlite.spark.run`: one barrier stage, and its supervision.

A thread blocks in Spark until the stage ends. Meanwhile the caller's thread polls the stage: so Ctrl-C works, a stage
without slots times out, and a failure is reported although other ranks go on.
"""

from __future__ import annotations

import functools
import queue
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyspark import InheritableThread, SparkContext
from pyspark.accumulators import AccumulatorParam

from hvdlite.errors import BadHostSpec, LaunchError, WorkerFailed
from hvdlite.hosted.outcomes import Outcome, lost, results
from hvdlite.log import logger
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.spark.task import Call, NameOfHorovod, in_order_of_ranks, run_rank

_LOOK_S: Final = 0.1
_REST_S: Final = 5.0  # after a rank has failed, for the outcomes of the others
_END_S: Final = 10.0  # for Spark to kill its Python processes, which takes it four seconds if it reaches them

_EXCLUDED: Final = {
    "spark.speculation": "a copy of a rank is no rank of the job",
    "spark.dynamicAllocation.enabled": "ranks start all at once, and Spark runs no barrier stage with it",
}
_LOST: Final = re.compile(r"errors\.WorkerFailed: rank (\d+) on (\S+) (was lost: .*)")
_REASONS: Final = (r"finished unsuccessfully\.\s+(.*)", r"failure: Lost task .*?\): (.*)", r"SparkException: (.*)")
_RAISED: Final = "An exception was thrown from the Python worker"
_FAILED_TASK: Final = re.compile(r"barrier task ResultTask\(\d+, (\d+)\)|Lost task (\d+)\.\d+ in stage")


def call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    size: int | None,
    start_timeout: float | None,
    environment: dict[str, str],
) -> list[Any]:
    """Calls ``function`` on ``size`` ranks; see `hvdlite.spark.run`."""
    if not callable(function):
        raise ValueError(f"fn must be a function, got {type(function).__name__}")
    context = SparkContext._active_spark_context
    if context is None:
        raise ValueError(
            "there is no SparkContext in this process: call hvdlite.spark.run() in the driver, after the SparkSession "
            "was made; Spark Connect has no SparkContext"
        )
    for name, reason in _EXCLUDED.items():
        if context.getConf().get(name, "false").lower() == "true":
            raise ValueError(f"{name}=true excludes hvdlite.spark.run(): {reason}; set it to false")
    if start_timeout is None:
        start_timeout = Settings.read().start_timeout
    else:
        environment = {"HVDLITE_START_TIMEOUT": f"{start_timeout:g}", **environment}
    with interruptible():
        size = _wait_for_slots(context, size, start_timeout)
        logger.info("%d rank(s) start in Spark's tasks", size)
        stage = Stage(context, Call(NameOfHorovod(), function, args, kwargs, environment, start_timeout), size)
        return results(stage.outcomes())


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns the error that Py4J raises on Ctrl-C into KeyboardInterrupt."""
    try:
        yield
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def _wait_for_slots(context: SparkContext, size: int | None, timeout_s: float) -> int:
    """Waits until ``size`` tasks can run at the same time, and returns that number.

    Spark itself would try 40 times, every 15 s. It does not report how many executors are still starting.
    """
    if size is None and (parallelism := context.getConf().get("spark.default.parallelism")):
        size = int(parallelism)
    scheduler = context._jsc.sc()
    profile = scheduler.resourceProfileManager().defaultResourceProfile()
    scope = Scope.of(timeout_s)
    while (slots := int(scheduler.maxNumConcurrentTasks(profile))) < (size or 1):
        if scheduler.isLocal() or scope.is_over:
            waited = "" if scheduler.isLocal() else f" after {timeout_s:g} s"
            raise BadHostSpec(
                f"{size or 1} ranks need as many slots at the same time, and Spark has {slots}{waited}; lower "
                "num_proc or give Spark more executors or cores (a slot has spark.task.cpus of them)"
            )
        time.sleep(_LOOK_S)  # Spark does not notify of new executors
    return size or slots


class _Concatenation(AccumulatorParam[list[Outcome]]):  # type: ignore[misc]  # without PySpark it is Any
    def zero(self, value: list[Outcome]) -> list[Outcome]:
        return []

    def addInPlace(self, value1: list[Outcome], value2: list[Outcome]) -> list[Outcome]:
        return [*value1, *value2]


class Stage:
    """A barrier stage of ``size`` tasks, each of which runs a rank of ``call``."""

    def __init__(self, context: SparkContext, call: Call, size: int) -> None:
        self._context = context
        self._call = call
        self._size = size
        self._tag = f"hvdlite-{secrets.token_hex(8)}"
        self._failed = context.accumulator([], _Concatenation())
        self._collected: queue.SimpleQueue[list[Outcome] | Exception] = queue.SimpleQueue()

    def outcomes(self) -> list[Outcome]:
        """Runs the stage; returns the outcomes of all ranks, or of those that failed by themselves.

        Raises LaunchError if Spark gave up. All ranks have ended afterwards, also after KeyboardInterrupt.
        """
        with self._running():
            collected = self._wait()
            if failed := self._failed.value:
                return list(failed)
            if isinstance(collected, Exception):
                raise self._error(collected) from None
            return collected

    @contextmanager
    def _running(self) -> Iterator[None]:
        thread = InheritableThread(target=self._collect, name="hvdlite-spark", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with suppress(Exception):  # the context may have been stopped meanwhile, and with it all ranks
                if thread.is_alive():
                    self._context.cancelJobsWithTag(self._tag)
                    thread.join(_END_S)
                ending = Scope.of(_END_S)
                while self._counts()[0] and not ending.is_over:
                    time.sleep(_LOOK_S)

    def _collect(self) -> None:
        """Runs the stage, in a thread with the caller's properties, such as its job group and scheduler pool."""
        name = getattr(self._call.function, "__name__", type(self._call.function).__name__)
        try:
            self._context.addJobTag(self._tag)
            self._context.setJobDescription(f"hvdlite: {name} on {self._size} rank(s)")
            partitions = self._context.parallelize(range(self._size), self._size)
            task = functools.partial(run_rank, self._call, self._failed)
            self._collected.put(partitions.barrier().mapPartitions(task).collect())
        except Exception as error:  # Spark's; `_error` turns it into ours
            self._collected.put(error)

    def _wait(self) -> list[Outcome] | Exception:
        """Waits for the end of the stage, after a failed rank for at most `_REST_S`.

        Raises LaunchError if its tasks cannot start.
        """
        starting, resting = Scope.of(self._call.timeout_s), Scope()
        while not resting.is_over:
            with suppress(queue.Empty):
                return self._collected.get(timeout=_LOOK_S)
            if self._failed.value:
                resting = Scope.of(_REST_S, resting)
            running, ended = self._counts()
            if running + ended >= self._size:
                starting = Scope.of(self._call.timeout_s)
            elif starting.is_over:
                raise LaunchError(
                    f"only {running + ended} of {self._size} ranks could start within {self._call.timeout_s:g} s: "
                    "other jobs hold the slots, or executors were lost; wait for them, lower num_proc, or raise "
                    "start_timeout"
                )
        return list(self._failed.value)

    def _stage(self) -> int | None:
        """Spark's number of the stage, None before it has one."""
        jobs = list(self._context._jsc.sc().statusTracker().getJobIdsForTag(self._tag))
        job = self._context.statusTracker().getJobInfo(jobs[0]) if jobs else None
        return next(iter(job.stageIds), None) if job else None

    def _counts(self) -> tuple[int, int]:
        """The numbers of running and of completed tasks."""
        stage = self._stage()
        info = None if stage is None else self._context.statusTracker().getStageInfo(stage)
        return (info.numActiveTasks, info.numCompletedTasks) if info else (0, 0)

    def _error(self, error: Exception) -> LaunchError:
        """The error to raise for Spark's ``error``."""
        text = str(error)
        if found := _LOST.search(text):
            return WorkerFailed(int(found[1]), found[2], 1, [], lost(found[3]))
        if _RAISED in text:
            return LaunchError(f"a task of Spark's could not become a rank: {_last_line(text)}")
        reason = _reason(text)
        if task := _FAILED_TASK.search(text):
            partition = int(task[1] or task[2])
            hosts = self._hosts()
            if partition in hosts:
                rank = in_order_of_ranks([hosts[each] for each in sorted(hosts)]).index(partition)
                return WorkerFailed(rank, hosts[partition], 1, [], lost(f"was lost: {reason.rstrip('.')}"))
        return LaunchError(f"Spark ended the job: {reason}")

    def _hosts(self) -> dict[int, str]:
        """The host of every task of the only attempt: Spark does not repeat a last stage with barriers."""
        store = self._context._jsc.sc().statusStore()
        tasks = store.taskList(self._stage(), 0, self._size)
        return {task.index(): task.host() for task in map(tasks.apply, range(tasks.size()))}


def _reason(text: str) -> str:
    """The sentence of ``text`` that says why, without the Java around it."""
    found = next(filter(None, (re.search(pattern, text) for pattern in _REASONS)), None)
    line = found[1] if found else text.splitlines()[0]
    return re.sub(r"^[\w.]+Exception: ", "", line).partition(". Consider setting")[0]


def _last_line(text: str) -> str:
    """The last line of Python's traceback in ``text``, and what to do about it."""
    traceback = text[text.index(_RAISED) :].partition("SQLSTATE")[0]
    line = traceback.rstrip().splitlines()[-1]
    if "No module named" in line:
        line += "; install hvdlite for the Python of Spark's executors (PYSPARK_PYTHON, spark.pyspark.python)"
    return line
