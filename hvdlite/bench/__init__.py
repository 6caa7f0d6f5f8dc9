"""``hvdrun -np N python -m hvdlite.bench``: how fast the collectives are here, alone or next to Gloo and NCCL.

A `Study` is a sweep over sizes, a step of many small tensors, or training. It makes a `Candidate` for every system that
it compares; `measure` runs candidates in turns, and `report` shows the rows.
To add a system: a file with a class like `Distributed`, and its label in `peers`. ``benchmarks`` of the sources adds
MPI, whose ranks are processes of their own, and the memory alone.
"""
