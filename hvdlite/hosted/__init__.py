"""Ranks in processes of an engine that places them itself and calls functions in them: Ray, Spark and Dask.

The engine says on which node each process runs. Its nodes give the ranks their seats, rank 0's process serves the
rendezvous, and every process joins the job for the time of one call. What came of it returns as a value, so that the
caller can tell the first failure from those that followed from it.
"""
