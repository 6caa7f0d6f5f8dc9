"""A driver of Spark on host a, whose workers are on a and b: ``python spark_nodes.py FOLDER``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyspark

import hvdlite as hvd
import hvdlite.spark


def places() -> dict[str, Any]:
    hvd.init()
    total = float(hvd.allreduce(np.full(100_000, hvd.rank() + 1.0), op=hvd.Sum)[0])
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    return {"place": place, "total": total, "host": os.uname().nodename}


def loses(folder: str) -> None:
    """Calls until one fails, and notes which rank was lost and when."""
    hvd.init()
    hvd.barrier()
    Path(folder, f"ready.{hvd.rank()}").touch()
    try:
        while True:
            hvd.allreduce(np.ones(3), name="again and again")
    except hvd.PeerLost as error:
        told = {"lost": error.rank, "host": error.host, "here": os.uname().nodename, "at": time.time()}
        Path(folder, f"lost.{hvd.rank()}").write_text(json.dumps(told))
        raise


def main(folder: str) -> None:
    settings = {"spark.master": "spark://a:7077", "spark.driver.host": "a", "spark.eventLog.enabled": "false"}
    conf = pyspark.SparkConf().setAppName("nodes").setAll(list(settings.items()))
    pyspark.SparkContext(conf=conf)
    told: dict[str, Any] = {"results": hvdlite.spark.run(places, num_proc=4)}
    try:
        hvdlite.spark.run(loses, (folder,), num_proc=4)
    except hvd.LaunchError as error:
        told |= {"error": type(error).__name__, "rank": getattr(error, "rank", None), "text": str(error)}
    told["at"] = time.time()
    os.write(1, json.dumps(told).encode() + b"\n")
    os._exit(0)  # Spark would wait for the host that is out of reach


if __name__ == "__main__":
    main(sys.argv[1])
