"""Ranks in processes of an engine that places them itself and calls functions in them: Ray, Spark and Dask.

The nodes on which the engine runs the processes decide the ranks. Rank 0 serves the rendezvous, and every process joins
the job for one call. Outcomes return as values, so that the caller can distinguish the first failure from its
consequences.
"""
