"""What is refused where the library `datasets` is not installed, too."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError


def test_a_data_dir_that_is_no_folder_is_refused(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    cfg = compose("datamodule=hf_dataset", f"datamodule.data_dir={nowhere}", "datamodule.inputs=x")
    with pytest.raises(ConfigError, match=rf"^datamodule\.data_dir={nowhere}: no such folder: {nowhere}; use a folder"):
        build(cfg, Plan.from_config(cfg))
