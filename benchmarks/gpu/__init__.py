"""``hvdrun -np N python -m benchmarks.gpu``: what calls of hvdlite on GPUs consist of, for work on hvdlite itself."""
