"""Identifies ranks that were started by something other than hvdrun: torchrun, mpirun, srun and the like."""
