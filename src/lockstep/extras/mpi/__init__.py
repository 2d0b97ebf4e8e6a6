"""MPI: ranks that mpirun has started, Open MPI's or MPICH's, on one host or on those of a hosts file."""
