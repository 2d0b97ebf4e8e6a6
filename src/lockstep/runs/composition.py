"""A config without Hydra's command line: for scripts, benchmarks and tests."""

import hydra
from omegaconf import DictConfig

from lockstep.launchers.environment import register_resolvers
from lockstep.places import CONF, import_from_project
from lockstep.runs.validation import derive


def compose(*overrides: str, config_name: str = "train") -> DictConfig:
    """Compose CONFIG_NAME of the project's conf/, or of Lockstep's, with overrides, and make the project's code importable.
    `name` and `run_dir`, which Hydra sets in a run, have fixed values."""
    import_from_project()
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = hydra.compose(config_name, overrides=[f"name={config_name}", "run_dir=.", *overrides])
    derive(config, overrides)
    return config
