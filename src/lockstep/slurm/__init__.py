"""SLURM: a run as a job that is requeued and goes on, and a sweep whose jobs wait in the queue."""
