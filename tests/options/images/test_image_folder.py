"""Image files in one folder per class."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from image_files import flat, write_class, write_split
from omegaconf import DictConfig
from torch.utils.data import Subset

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.datamodules.image_folder import ImageFolder
from lockstep.errors import ConfigError


def test_split_folders_are_the_splits(tmp_path: Path) -> None:
    datamodule = ImageFolder(str(write_split(tmp_path, train=4, val=2, test=3)), size=8)
    datamodule.prepare_data()
    assert datamodule.describe() == {"train": 8, "val": 4, "test": 6}
    assert datamodule.spec.input_shape == (3, 8, 8)
    assert (datamodule.spec.num_outputs, datamodule.spec.class_names) == (2, ("cat", "dog"))
    for split in (datamodule.splits.train, datamodule.splits.val, datamodule.splits.test):
        for image, target in split:  # pyright: ignore[reportOptionalIterable]
            assert image.shape == (3, 8, 8)
            assert image.dtype == torch.uint8
            red, _, blue = image.float().mean(dim=(1, 2)).tolist()
            assert target == (0 if red > blue else 1)


@pytest.mark.parametrize(
    ("layout", "options", "sizes"),
    [
        ("split", {"val_fraction": 0.2}, {"train": 16, "val": 4, "test": 4}),
        ("flat", {"val_fraction": 0.25, "test_fraction": 0.1}, {"train": 27, "val": 9, "test": 4}),
    ],
)
def test_what_has_no_folder_of_its_own_is_drawn_with_the_seed(
    layout: str, options: dict[str, float], sizes: dict[str, int], tmp_path: Path
) -> None:
    folder = write_split(tmp_path, train=10, test=2) if layout == "split" else flat(tmp_path, 20)

    def drawn(seed: int) -> list[list[int]]:
        datamodule = ImageFolder(str(folder), seed=seed, **options)
        assert datamodule.describe() == sizes
        splits = (datamodule.splits.train, datamodule.splits.val, datamodule.splits.test)
        return [list(split.indices) for split in splits if isinstance(split, Subset)]

    parts = drawn(0)
    assert sorted(i for part in parts for i in part) == list(range(20 if layout == "split" else 40))
    assert drawn(0) == parts
    assert drawn(1) != parts


def test_a_class_that_training_does_not_have_is_refused_and_others_keep_their_numbers(tmp_path: Path) -> None:
    write_split(tmp_path, train=2, val=1)
    write_class(tmp_path / "test", "dog", 1)
    assert ImageFolder(str(tmp_path)).folders["test"].targets == [1]
    write_class(tmp_path / "val", "emu", 1)
    with pytest.raises(ConfigError, match=r"val: has classes that train/ has not: emu$"):
        ImageFolder(str(tmp_path)).load()


def test_a_test_folder_is_needed_for_a_test_only(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    write_split(tmp_path, train=2, val=1)
    here = ("datamodule=image_folder", f"datamodule.data_dir={tmp_path}", "trainer=cpu", "logger=csv")
    cfg = compose(*here, "test=true")
    with pytest.raises(ConfigError, match=r"^test=true: this data has no test split; use test=auto"):
        build(cfg, Plan.from_config(cfg))
    cfg = compose(*here)
    datamodule, _, _ = build(cfg, Plan.from_config(cfg))
    datamodule.prepare_data()
    assert datamodule.describe() == {"train": 4, "val": 2, "test": 0}
    assert datamodule.test_dataloader() == []
