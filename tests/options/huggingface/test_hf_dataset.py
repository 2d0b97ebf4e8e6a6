"""Hugging Face data sets on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import write_noise

from lockstep.datamodules.hf_dataset import HFDataset
from lockstep.datamodules.image_folder import decode

datasets: Any = pytest.importorskip("datasets", reason="the library `datasets` is not installed: pip install datasets")


@pytest.fixture(autouse=True)
def _library_s_cache_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def table(length: int, first: int = 0) -> Any:
    numbers = range(first, first + length)
    return datasets.Dataset.from_dict({"x": [[float(i), i / 2] for i in numbers], "label": [i % 3 for i in numbers]})


def test_parquet_files_are_the_splits_that_their_names_say(tmp_path: Path) -> None:
    for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "test")):
        table(10, 10 * number).to_parquet(str(tmp_path / f"{name}.parquet"))
    datamodule = HFDataset(str(tmp_path), inputs="x", batch_size=20, shuffle=False)
    assert datamodule.describe() == {"train": 20, "val": 10, "test": 10}
    assert (datamodule.spec.input_shape, datamodule.spec.num_outputs, datamodule.spec.class_names) == ((2,), 3, None)
    inputs, targets = next(iter(datamodule.train_dataloader()))
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs, torch.tensor([[i, i / 2] for i in range(20)]))
    assert targets.tolist() == [i % 3 for i in range(20)]


def test_saved_splits_with_class_names_and_images(tmp_path: Path) -> None:
    paths = write_noise(tmp_path / "photos", 12)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    columns = {"image": [str(path) for path in paths], "label": [path.parent.name for path in paths]}
    whole = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(tmp_path / "data")
    datamodule = HFDataset(str(tmp_path / "data"), inputs="image", size=8, val_fraction=0.25)
    assert datamodule.describe() == {"train": 9, "val": 3, "test": 12}
    assert (datamodule.spec.input_shape, datamodule.spec.class_names) == ((3, 8, 8), ("a", "b"))
    inputs, targets = datamodule.splits.test.__getitems__(range(12))
    assert torch.equal(inputs, torch.stack([decode(path, (3, 8, 8)) for path in paths]))
    assert targets.tolist() == [int(path.parent.name == "b") for path in paths]
