"""SLURM: a run as a job that is requeued and goes on, and a sweep whose jobs wait in the queue."""

FILES = ["docs/slurm.md", "conf/hydra/launcher/slurm.yaml", "scripts/train.sbatch", "src/hydra_plugins/slurm_launcher.py"]
