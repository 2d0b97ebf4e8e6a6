"""What needs a library that is not installed says so in one line."""

import sys
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.extras.huggingface.hf_dataset import HFDataset


def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if there were none
    with pytest.raises(
        ConfigError, match=r"^datamodule=hf_dataset: the library `datasets` is not installed: pip install datasets$"
    ):
        HFDataset(str(tmp_path), inputs="x")
