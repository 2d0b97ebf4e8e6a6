"""Ray: a sweep whose jobs run where Ray has room for them, on this machine or on a cluster."""

FILES = ["docs/ray.md", "conf/hydra/launcher/ray.yaml", "src/hydra_plugins/ray_launcher.py"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES = ["ray"]
