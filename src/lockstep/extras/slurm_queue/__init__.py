"""A sweep whose jobs wait in the queue of SLURM."""

FILES = ["docs/slurm.md", "conf/hydra/launcher/slurm.yaml", "src/hydra_plugins/slurm_launcher.py"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
