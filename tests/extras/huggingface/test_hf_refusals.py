"""What is refused where the library `datasets` is not installed, too."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.huggingface.hf_dataset import HFDataset, _tables


def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if there were none
    with pytest.raises(
        ConfigError, match=r"^datamodule=hf_dataset: the library `datasets` is not installed: pip install datasets$"
    ):
        HFDataset(str(tmp_path), inputs="x")


def test_a_data_set_that_is_a_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{tmp_path.name}.py").write_text("open('ran', 'w')")
    with pytest.raises(ConfigError, match=r"has .*, a program; accepted is data alone"):
        _tables(tmp_path)


def test_a_data_dir_that_is_no_folder_is_refused(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    cfg = compose("datamodule=hf_dataset", f"datamodule.data_dir={nowhere}", "datamodule.inputs=x")
    with pytest.raises(ConfigError, match=rf"^datamodule\.data_dir={nowhere}: no such folder: {nowhere}; use a folder"):
        build(cfg, Plan.from_config(cfg))
