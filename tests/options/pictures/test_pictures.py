"""The confusion matrix in TensorBoard, of whatever a model is given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from in_process import prepared
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.callbacks.monitors import Pictures
from lockstep.models import Classifier

OPTIONS = ("trainer.max_epochs=1", "datamodule=synthetic_images", "datamodule.shape=[1,8,8]")


def stand_in(folder: Path) -> Any:
    """A trainer of one process."""
    one = {"global_rank": 0, "world_size": 1, "distributed_sampler_kwargs": None, "is_global_zero": True, "global_step": 7}
    strategy = SimpleNamespace(reduce=lambda counts, **_: counts)
    return SimpleNamespace(loggers=[TensorBoardLogger(folder, name="", version="")], strategy=strategy, **one)


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    _, model, _ = prepared(tmp_path, *OPTIONS)
    return model


def test_the_confusion_matrix_counts_every_sample(model: Classifier, tmp_path: Path) -> None:
    pictures, trainer = Pictures(), stand_in(tmp_path)
    pictures.on_test_start(trainer, model)
    for targets in ([0, 0, 2], [1]):
        batch = torch.zeros(len(targets), 1, 8, 8), torch.tensor(targets)
        outputs = torch.nn.functional.one_hot(torch.zeros(len(targets), dtype=torch.int64), 10).float()
        pictures.on_test_batch_end(trainer, model, outputs, batch, 0)
    assert pictures._matrix.confmat[:3, 0].tolist() == [2, 1, 1]
    pictures.on_test_epoch_end(trainer, model)
    trainer.loggers[0].experiment.flush()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(image.step, image.width) for image in events.Images("test/confusion")] == [(7, 490)]
