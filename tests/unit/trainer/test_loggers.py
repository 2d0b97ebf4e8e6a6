"""Loggers log each point once, and go on in a resumed run."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from lockstep.trainer.loggers import CSVLogger, TensorBoardLogger

pytestmark = pytest.mark.filterwarnings("ignore:Experiment logs directory")  # as in a run


def rows(folder: Path) -> list[tuple[str, str]]:
    with (folder / "csv" / "metrics.csv").open(newline="") as file:
        return [(row["step"], row["loss"]) for row in csv.DictReader(file)]


def logger(folder: Path, purge_step: int | None = None) -> CSVLogger:
    return CSVLogger(save_dir=str(folder), name="csv", version="", purge_step=purge_step)


def test_what_came_before_the_checkpoint_is_kept_and_what_came_after_is_logged_anew(tmp_path: Path) -> None:
    first = logger(tmp_path)
    for step in range(4):
        first.log_metrics({"loss": step / 2}, step=step)
    first.save()
    again = logger(tmp_path, purge_step=2)
    assert again.experiment is not None
    assert rows(tmp_path) == [("0", "0.0"), ("1", "0.5")]  # on disk at once: a kill now loses nothing
    again.log_metrics({"loss": 7.0, "acc": 1.0}, step=2)
    again.save()
    assert rows(tmp_path) == [("0", "0.0"), ("1", "0.5"), ("2", "7.0")]


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_of_networks_and_tensors_among_hyperparameters_the_class_is_written(kind: Any, tmp_path: Path) -> None:
    """Lightning writes each byte of them to a YAML file: 30 seconds were not enough for 8 MB."""
    net = nn.Sequential(nn.Linear(2, 2))
    given = {"lr": 0.1, "weights": torch.ones(40, 40), "net": net, "sizes": [1, 2]}
    one = kind(save_dir=str(tmp_path), name="it", version="")
    one.log_hyperparams(given)
    one.save()
    written = yaml.safe_load((tmp_path / "it" / "hparams.yaml").read_text())
    assert written == {"lr": 0.1, "weights": "Tensor", "net": "Sequential", "sizes": [1, 2]}


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "metrics.csv").write_text("loss,step\n0.5,0\n0.25")
    again = logger(tmp_path, purge_step=5)
    assert again.experiment is not None
    assert rows(tmp_path) == [("0", "0.5")]
