"""A config without Hydra's command line: for scripts, benchmarks and tests."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from lockstep.launchers.environment import register_resolvers

CONF = Path(__file__).resolve().parents[3] / "conf"


def compose(*overrides: str, config_name: str = "train") -> DictConfig:
    """conf/CONFIG_NAME.yaml with overrides. `name` and `run_dir`, which a run asks of Hydra, are given."""
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return hydra.compose(config_name, overrides=[f"name={config_name}", "run_dir=.", *overrides])
