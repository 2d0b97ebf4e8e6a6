"""Launchers, which start the ranks of a run: the script's own parent process, torchrun or srun."""
