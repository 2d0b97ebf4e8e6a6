"""Streams of torchdata, as their users write them: a run that is continued within an epoch loads what was left of it, from the
position that the checkpoint holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import last
from plain_lightning import DigitsData
from sklearn.datasets import load_digits
from test_plain_lightning import GOES_ON, fitted
from torch.utils.data import IterableDataset

from lockstep.checkpointing import read_checkpoint
from lockstep.runs.results import collect_facts

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.set_vital. is deprecated", GOES_ON)]  # torchdata calls it
Stateful: Any = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


def rows() -> list[Any]:
    images, labels = load_digits(return_X_y=True)
    return [(torch.tensor(images[i] / 16, dtype=torch.float32), int(labels[i])) for i in range(700)]


class Images(IterableDataset[Any]):
    """It goes on from where an iteration has left it."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Any:
        for row in rows()[self.given :]:
            self.given += 1
            yield row
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class Stream(DigitsData):
    def train_dataloader(self) -> Any:
        return Stateful(Images(), self.hparams["batch_size"], num_workers=self.hparams["num_workers"])


class MapStyle(DigitsData):
    def train_dataloader(self) -> Any:
        return Stateful(rows(), self.hparams["batch_size"], shuffle=True, num_workers=self.hparams["num_workers"])


@pytest.mark.parametrize(
    ("kind", "workers", "batches", "passed"),
    [(Stream, 0, 7, 4), (MapStyle, 2, 7, 4)],
)
def test_a_run_that_is_continued_in_its_second_epoch_ends_as_if_nothing_had_been(
    kind: type, workers: int, batches: int, passed: int, tmp_path: Path
) -> None:
    data = (
        "trainer.max_epochs=3",
        f"datamodule._target_=test_stateful_streams.{kind.__name__}",
        f"+datamodule.num_workers={workers}",
    )
    fitted(tmp_path / "whole", *data, keep=tmp_path)
    checkpoint = tmp_path / f"{batches + passed}.ckpt"
    trainer = fitted(tmp_path / "run", *data, ckpt_path=checkpoint)
    own, other = last(tmp_path / "run"), last(tmp_path / "whole")
    assert own["global_step"] == other["global_step"] == 3 * batches
    assert differences(own["state_dict"], other["state_dict"]) == []
    assert read_checkpoint("kept", checkpoint)["loader_positions"]["batches"] == passed
    assert collect_facts(trainer)["samples_trained"] == 3 * 700
