"""A cluster of Dask until stdin ends: ``python dask_cluster.py WORKERS FOLDER``; prints its address."""

from __future__ import annotations

import sys

import dask
from distributed import LocalCluster

if __name__ == "__main__":
    dask.config.set(temporary_directory=sys.argv[2])
    with LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
