"""A driver of Spark that runs one job after the other: ``python spark_jobs.py FOLDER``.

Each job is a line of JSON: what came of it, and after how long. Its functions belong to ``__main__``, as in a script.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyspark

import hvdlite as hvd
import hvdlite.spark
from hvdlite.hosted.outcomes import results
from hvdlite.rendezvous.presence import names_at
from hvdlite.spark.stage import _Concatenation
from hvdlite.spark.task import Call, run_rank
from tests.harness.patience import PATIENCE_S, PROMPT_S, until
from tests.launcher.hvdrun import still_alive

horovod: Any = None


def ordinary(_: int) -> list[str]:
    """What is left of a rank in the process of an ordinary task."""
    ours = [name for name in os.environ if name in ("HVDLITE_SECRET", "HVDLITE_RANK", "HVDLITE_RENDEZVOUS", "EXTRA")]
    return ours + [name for name in names_at(os.getpid()) if name.startswith("hvdlite")]


class Total:
    """A result of a class that only the script has."""

    def __init__(self, value: float) -> None:
        self.value = value


def note(name: str, **fields: Any) -> None:
    """Writes a file of this rank to the folder of the drivers, in one piece."""
    path = Path(os.environ["JOBS"], f"{name}.{hvd.rank()}.{os.getpid()}")
    path.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), "at": time.time(), **fields}))
    path.with_suffix(".new").rename(path)


def notes(name: str) -> list[dict[str, Any]]:
    """The files of `note`, by rank, and then in their order in time."""
    found = [
        (int(path.suffixes[-2][1:]), json.loads(path.read_text()))
        for path in Path(os.environ["JOBS"]).glob(f"{name}.*")
    ]
    return [{"rank": rank, **fields} for rank, fields in sorted(found, key=lambda each: (each[0], each[1]["at"]))]


def first_time(name: str) -> bool:
    """True for the first that asks."""
    try:
        os.close(os.open(Path(os.environ["JOBS"], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def total() -> Total:
    hvd.init()
    return Total(float(hvd.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum)[0]))


def falls_silent() -> None:
    """Rank 1's process is stopped, so that Spark thinks that it works."""
    hvd.init()
    hvd.barrier()
    note("silent")
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    hvd.allreduce(np.ones(3), name="after")


def fails_unnoticed() -> None:
    """Rank 0 is busy with something else when rank 1 fails."""
    hvd.init()
    hvd.barrier()
    note("unnoticed")
    if hvd.rank() == 1:
        raise OSError("the disk is full")
    time.sleep(PATIENCE_S)


def waits() -> None:
    hvd.init()
    hvd.barrier()
    note("waits")
    if hvd.rank() == 1:
        time.sleep(PATIENCE_S)
    hvd.allreduce(np.ones(3), name="never complete")


def dies_once(name: str, die: Callable[[], None]) -> dict[str, Any]:
    """Rank 1 dies in the first attempt, and the other notes what it sees of that."""
    hvd.init()
    hvd.barrier()
    note(name, key=os.environ["HVDLITE_SECRET"])
    if hvd.rank() == 1 and first_time(f"{name} died"):
        note(f"{name} dies")
        die()
        time.sleep(PATIENCE_S)
    try:
        hvd.allreduce(np.ones(3), name="after")
    except hvd.PeerLost as error:
        note(f"{name} lost", lost=error.rank)
        raise
    return {"rank": hvd.rank(), "total": float(hvd.allreduce(np.ones(3), op=hvd.Sum)[0])}


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_this_executor() -> None:
    """The Java machine that Spark calls an executor."""
    next(parent for parent in psutil.Process().parents() if parent.name() == "java").kill()


def run(function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    return hvdlite.spark.run(
        function, args, env={"JOBS": os.environ["JOBS"], "EXTRA": "1"}, **{"num_proc": 2, **options}
    )


def run_before_a_shuffle(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Plays the ranks in a stage that Spark runs again, unlike the last stage of a job with barriers."""
    context = pyspark.SparkContext.getOrCreate()
    call = Call(None, function, args, {}, {"JOBS": os.environ["JOBS"]}, PATIENCE_S)
    task = functools.partial(run_rank, call, context.accumulator([], _Concatenation()))
    stage = context.parallelize(range(2), 2).barrier().mapPartitions(task)
    return results(stage.map(lambda outcome: (0, outcome)).partitionBy(1).values().collect())


def job(
    name: str,
    run: Callable[..., Any],
    function: Callable[..., Any],
    *args: Any,
    ending: Sequence[int] = (0, 1),
    **options: Any,
) -> None:
    """Runs a job of two ranks, and writes what came of it. After a failure the processes of ``ending`` are to end."""
    told: dict[str, Any] = {"job": name, "begun": time.time()}
    try:
        found = run(function, *args, **options)
        told["results"] = [result.value if isinstance(result, Total) else result for result in found]
    except (hvd.HvdError, ValueError, KeyboardInterrupt) as error:
        told |= {"error": type(error).__name__, "text": str(error)}
        told |= {"rank": getattr(error, "rank", None), "host": getattr(error, "host", None)}
    told["ended"] = time.time()
    if "error" in told:  # Spark's daemon kills them, maybe a moment after Spark has told it to
        told["alive"] = still_alive([each["pid"] for each in notes(name) if each["rank"] in ending], PROMPT_S)
    told["notes"] = {which: notes(f"{name}{which}") for which in ("", " dies", " lost")}
    os.write(1, json.dumps(told).encode() + b"\n")


def as_horovod() -> list[Any]:
    """Imports Horovod's names, and has one of its own."""
    from horovod.common.basics import HorovodBasics  # type: ignore[import-not-found]

    basics = HorovodBasics()
    basics.init()
    return [basics.rank(), horovod.get_available_devices()]


def run_ordinary_tasks(function: Callable[..., Any]) -> list[Any]:
    return list(pyspark.SparkContext.getOrCreate().parallelize(range(8), 8).map(function).collect())


def horovod_run(function: Callable[..., Any]) -> list[Any]:
    return list(horovod.run(function, num_proc=2))


def run_beside_another_job(function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """As `run`, while an ordinary task holds one of the two slots."""
    context = pyspark.SparkContext.getOrCreate()
    taken, free = (str(Path(os.environ["JOBS"], name)) for name in ("slot taken", "slot free"))

    def hold(_: Any) -> None:
        Path(taken).touch()
        until(Path(free).exists)

    holder = pyspark.InheritableThread(target=lambda: context.parallelize([0], 1).foreach(hold))
    holder.start()
    try:
        until(Path(taken).exists)
        return run(function, *args, **options)
    finally:
        Path(free).touch()
        holder.join()


def interrupt_when_both_wait() -> None:
    until(lambda: len(notes("waits")) == 2)
    os.kill(os.getpid(), signal.SIGINT)


def main(folder: str) -> None:
    os.environ["JOBS"] = folder
    context = pyspark.SparkContext(appName="jobs")
    job("agrees", run, total)
    job("too many", run, total, num_proc=3, start_timeout=1)
    job("taken", run_beside_another_job, total, start_timeout=1)
    job("lambda", run, lambda: total().value)
    job("ordinary", run_ordinary_tasks, ordinary)
    job("silent", run, falls_silent)
    job("unnoticed", run, fails_unnoticed, ending=[0])  # rank 1's process may wait for other tasks
    threading.Thread(target=interrupt_when_both_wait).start()
    job("waits", run, waits)
    job("again", run_before_a_shuffle, dies_once, "again", kill_this_process)
    job("executor", run, dies_once, "executor", kill_this_executor)
    job("after", run, total)
    hvd.install_as_horovod()
    globals()["horovod"] = importlib.import_module("horovod.spark")  # the module that the function below names
    job("as horovod", horovod_run, as_horovod)
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
