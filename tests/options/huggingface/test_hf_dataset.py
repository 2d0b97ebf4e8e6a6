"""Hugging Face data sets on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.datamodules.hf_dataset import HFDataset

datasets: Any = pytest.importorskip("datasets", reason="the library `datasets` is not installed: pip install datasets")


def table(numbers: range) -> Any:
    return datasets.Dataset.from_dict({"x": [[float(i), i / 2] for i in numbers], "label": [i % 3 for i in numbers]})


def test_parquet_files_are_the_splits_that_their_names_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "test")):
        table(range(10 * number, 10 * number + 10)).to_parquet(str(tmp_path / f"{name}.parquet"))
    datamodule = HFDataset(str(tmp_path), inputs="x", batch_size=20, shuffle=False)
    assert datamodule.describe() == {"train": 20, "val": 10, "test": 10}
    assert (datamodule.spec.input_shape, datamodule.spec.num_outputs, datamodule.spec.class_names) == ((2,), 3, None)
    inputs, targets = next(iter(datamodule.train_dataloader()))
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs, torch.tensor([[i, i / 2] for i in range(20)]))
    assert targets.tolist() == [i % 3 for i in range(20)]
