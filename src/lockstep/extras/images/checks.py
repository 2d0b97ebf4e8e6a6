"""What the arguments of the data accept."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import integer
from lockstep.errors import config_error


def check_folder(cfg: DictConfig, key: str, _plan: Plan) -> None:
    """Raises ConfigError where data that is on disk, and is not downloaded, has no folder."""
    if not Path(path := OmegaConf.select(cfg, key).data_dir).is_dir():
        raise config_error(f"{key}.data_dir", path, f"no such folder: {Path(path).absolute()}; accepted is a folder with data")


RULES = {"ImageFolder": {"size": integer(1)}}
CHECKS = {"ImageFolder": check_folder}
