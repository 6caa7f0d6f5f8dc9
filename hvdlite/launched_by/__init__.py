"""Who this process is, when something other than hvdrun started it: torchrun, mpirun, srun and their like."""
