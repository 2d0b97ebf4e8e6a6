"""What is refused where the library `datasets` is not installed, too."""

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig
from refusals import refusal


def test_a_data_dir_that_is_no_folder_is_refused(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    message = refusal(compose("datamodule=hf_dataset", f"datamodule.data_dir={nowhere}", "datamodule.inputs=x"))
    assert message == f"datamodule.data_dir={nowhere}: no such folder: {nowhere}; accepted is a folder with data"
