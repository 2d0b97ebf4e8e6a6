"""Pictures in TensorBoard, of whatever a model is given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capabilities import requires
from in_process import prepared
from unwatched import unwatched

from lockstep.datamodules.batches import Batch
from lockstep.extras.pictures.pictures import Pictures
from lockstep.models import Classifier

pytestmark = requires("synthetic")
OPTIONS = ("trainer.max_epochs=1", "trainer.limit_val_batches=1", "datamodule=synthetic_images", "datamodule.shape=[1,8,8]")


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    _, model, _ = prepared(tmp_path, *OPTIONS)
    return model


@pytest.mark.parametrize("batch", [{"image": torch.zeros(2, 1, 8, 8)}, [torch.zeros(2, 1, 8, 8), torch.zeros(2)]])
def test_a_batch_of_another_type_is_no_picture(batch: Any, model: Classifier) -> None:
    pictures, trainer = Pictures(), SimpleNamespace(loggers=[], is_global_zero=True)
    outputs: Any = torch.zeros(2, 10)
    pictures.on_validation_batch_end(trainer, model, outputs, batch, 0)
    pictures.on_train_end(trainer, model)
    pictures.on_test_start(trainer, model)
    pictures.on_test_batch_end(trainer, model, outputs, batch, 0)
    pictures.on_test_epoch_end(trainer, model)


def test_the_confusion_matrix_counts_every_sample(model: Classifier) -> None:
    one = {"global_rank": 0, "world_size": 1, "distributed_sampler_kwargs": None}
    pictures, trainer = Pictures(), SimpleNamespace(loggers=[], is_global_zero=True, **one)
    pictures.on_test_start(trainer, model)
    for targets in ([0, 0, 2], [], [1]):  # a rank may have no sample in a tail
        batch = Batch(
            torch.zeros(len(targets), 1, 8, 8), torch.tensor(targets, dtype=torch.int64), torch.arange(len(targets)), 1.0
        )
        outputs = torch.nn.functional.one_hot(torch.zeros(len(targets), dtype=torch.int64), 10).float()
        pictures.on_test_batch_end(trainer, model, outputs, batch, 0)
    assert pictures._confusion is not None
    assert pictures._confusion.compute()[:3, 0].tolist() == [2, 1, 1]


def test_pictures_of_data_that_is_sorted_by_class_are_of_all_classes(tmp_path: Path) -> None:
    pictures = Pictures(samples=64)
    options = ("logger=tensorboard", "datamodule.batch_size=64")
    datamodule, model, trainer = prepared(tmp_path, *OPTIONS, *options, extra=[pictures])
    targets = datamodule.splits.val.targets
    targets.copy_(targets.sort().values)
    trainer.validate(model, datamodule)
    assert pictures._kept is not None
    assert set(pictures._kept[1].tolist()) == set(range(10))


def test_they_are_watched_in_all_their_hooks() -> None:
    assert unwatched(Pictures) == []
