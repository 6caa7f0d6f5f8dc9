"""MPI libraries as systems of the benchmark: Intel MPI and Open MPI 5, through mpi4py.

Each lives in a virtual environment of its own, which the benchmark makes once (`environment`). Rank 0 starts
``mpiexec`` there with as many ranks as the job has (`job`), and each rank of the job talks to the MPI rank of the same
number, a `worker`, through a Unix socket. So MPI is timed and checked exactly like other systems, and while those are
measured, its ranks sleep in a read instead of spinning in MPI.
"""
