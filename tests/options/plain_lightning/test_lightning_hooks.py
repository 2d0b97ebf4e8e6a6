"""Hooks of Lightning in modules and data, on several processes and after a resumption."""

import pickle
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import become_rank, composed, last
from lightning import Callback, seed_everything
from lightning.fabric.utilities.seed import reset_seed
from plain_lightning import DigitsData, LitClassifier
from ranks import in_ranks
from test_callbacks import RECOVERS, STOP
from test_plain_lightning import GOES_ON, METRIC, MINE, QUIET, fitted
from test_torch_loaders import Own
from torch import nn
from torch.utils.data import DataLoader, Subset

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.results import collect_metrics, read_best


class DrawnSplit(DigitsData):
    """Draws its split from whatever generator there is, after it has prepared data."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__(batch_size)
        self.splits: list[list[int]] = []

    def prepare_data(self) -> None:
        torch.rand(3)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.splits.append([*torch.randperm(9).tolist(), *np.random.permutation(9).tolist(), *random.sample(range(9), 9)])


def test_a_split_is_drawn_as_on_one_process_in_every_stage_and_process(tmp_path: Path) -> None:
    drawn = (*MINE, *METRIC, "datamodule._target_=test_lightning_hooks.DrawnSplit", "trainer.max_epochs=1")
    cfg = composed(*QUIET, *drawn, run_dir=tmp_path)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    assert isinstance(pickle.loads(pickle.dumps(datamodule)), DrawnSplit)
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    data: Any = datamodule
    reset_seed()  # as DDP does
    data.setup("fit")
    seed_everything(0, verbose=False)
    expected = DrawnSplit()
    expected.setup("fit")
    assert data.splits == expected.splits * 3


class OrderedData(DigitsData):
    """In an order that a generator of its own draws."""

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, 100, sampler=Own(1400), num_workers=1)


def test_an_order_is_the_same_after_a_resumption_whatever_generator_a_sampler_has(tmp_path: Path) -> None:
    drawn = ("datamodule._target_=test_lightning_hooks.OrderedData", "trainer.max_epochs=3", "trainer.limit_train_batches=2")
    whole = fitted(tmp_path / "run", *drawn, keep=tmp_path).lightning_module.state_dict()
    resumed = fitted(tmp_path / "again", *drawn, ckpt_path=tmp_path / "4.ckpt").lightning_module.state_dict()
    assert [name for name in whole if not torch.equal(resumed[name], whole[name])] == []


class PartOfTheData(DigitsData):
    """Another one in each epoch."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__(batch_size)
        self.asked: list[tuple[str, int]] = []

    def _part(self, kind: str, data: Any) -> Any:
        self.asked.append((kind, self.trainer.current_epoch))  # pyright: ignore[reportOptionalMemberAccess]
        return DataLoader(Subset(data, torch.randperm(len(data))[:100].tolist()), 50)

    def train_dataloader(self) -> Any:
        return self._part("train", self.train)

    def val_dataloader(self) -> Any:
        return self._part("val", self.val)


EARLY = "model._target_=plain_lightning.LitClassifier"  # its schedule asks for the loader, before the epoch is known
LATE = "model._target_=test_plain_lightning.AtOneRate"


@pytest.mark.filterwarnings(GOES_ON)
@pytest.mark.parametrize(("batches", "model"), [(6, LATE), (7, EARLY)])
def test_loaders_are_made_again_in_the_epochs_of_a_run_that_was_not_interrupted(batches: int, model: str, tmp_path: Path) -> None:
    """A run of five epochs that went on from the third made them in the fourth, and not in the fifth."""
    part = ("datamodule._target_=test_lightning_hooks.PartOfTheData", "+trainer.reload_dataloaders_every_n_epochs=2")
    part += ("trainer.max_epochs=5", model)
    whole = fitted(tmp_path / "run", *part, keep=tmp_path)
    resumed = fitted(tmp_path / "again", *part, ckpt_path=tmp_path / f"{batches}.ckpt")
    assert {*whole.datamodule.asked} == {(kind, epoch) for kind in ("train", "val") for epoch in (0, 2, 4)}
    assert {*resumed.datamodule.asked} - {("train", 0)} == {(kind, e) for kind in ("train", "val") for e in {batches // 2, 4}}
    assert all(map(torch.equal, whole.lightning_module.parameters(), resumed.lightning_module.parameters()))
    assert whole.callback_metrics["val_loss"] == resumed.callback_metrics["val_loss"]


class Frozen(LitClassifier):
    """Leaves an encoder that is not trained out of its checkpoints, saves an object in them, and anneals as an epoch begins."""

    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.strict_loading = False
        self.encoder = nn.Linear(64, 64).requires_grad_(False)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.encoder(x))

    def on_train_epoch_start(self) -> None:
        self.temperature: Any = self.temperature / 2

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: tensor for name, tensor in state.items() if not name.startswith("encoder")}
        checkpoint["loss"] = nn.CrossEntropyLoss()


class Counts(Callback):
    """The batches and epochs that have begun."""

    def __init__(self) -> None:
        self.begun = {"batches": 0, "epochs": 0}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.begun["epochs"] += 1

    def on_train_batch_start(self, *_: Any) -> None:
        self.begun["batches"] += 1

    def state_dict(self) -> dict[str, int]:
        return dict(self.begun)

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.begun = dict(state_dict)


FROZEN = ("model._target_=test_lightning_hooks.Frozen", "trainer.limit_train_batches=2")
FROZEN += ("+callbacks.counts._target_=test_lightning_hooks.Counts",)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of the checkpoints of a run of two epochs, by the number of batches before them, and its module."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, fitted(folder / "run", *FROZEN, keep=folder).lightning_module


@pytest.mark.filterwarnings(GOES_ON)
@pytest.mark.parametrize("batches", [2, 3], ids=["from the end of an epoch", "from within one"])
def test_what_hooks_change_or_leave_out_is_after_a_resumption_as_without(
    batches: int, whole: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = fitted(tmp_path / "again", *FROZEN, ckpt_path=whole[0] / f"{batches}.ckpt")
    assert all(map(torch.equal, whole[1].parameters(), trainer.lightning_module.parameters()))
    assert "Checkpoints are written without loss, which" in caplog.text
    assert "encoder.weight" not in last(tmp_path / "again")["state_dict"]
    assert trainer.lightning_module.temperature == 0.25
    (counts,) = (callback for callback in trainer.callbacks if isinstance(callback, Counts))
    assert counts.begun == {"batches": 4, "epochs": 2}


@pytest.mark.filterwarnings(GOES_ON)
def test_a_module_without_strict_loading_is_tested_and_gives_its_weights(whole: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copy(whole[0] / "3.ckpt", path := whole[0] / "run" / "checkpoints" / "last.ckpt")
    resumed = fitted(whole[0] / "run", *FROZEN, ckpt_path=path)
    cfg = composed(*QUIET, *MINE, *METRIC, *FROZEN, f"init_from={path}", run_dir=tmp_path / "other")
    datamodule, begun, trainer = build(cfg, Plan.from_config(cfg))
    own = resumed.lightning_module
    values = [one.test(model, datamodule, verbose=False) for one, model in ((resumed, own), (trainer, begun))]
    assert values[0] == values[1] != []


TWO = "trainer.devices=2"


def same(one: Any, other: Any) -> bool:
    return all(map(torch.equal, one.lightning_module.parameters(), other.lightning_module.parameters()))


def frozen_of_rank(rank: int, world_size: int, folder: Path) -> list[Any]:
    become_rank(rank, world_size)
    whole = fitted(folder / "run", TWO, *FROZEN, keep=folder)
    resumed = [fitted(folder / f"again{n}", TWO, *FROZEN, ckpt_path=folder / f"{n}.ckpt") for n in (2, 3)]
    cfg = composed(*QUIET, *MINE, *METRIC, *FROZEN, TWO, f"init_from={folder / '3.ckpt'}", run_dir=folder / "other")
    datamodule, begun, trainer = build(cfg, Plan.from_config(cfg))
    own = fitted(folder / "run", TWO, *FROZEN, ckpt_path=folder / "run" / "checkpoints" / "last.ckpt")
    tested = [one.test(one.lightning_module, one.datamodule, verbose=False) for one in (own, whole)]
    assert "loss" not in last(folder / "again2")  # the object, without which the run goes on
    return [[same(whole, one) for one in resumed], tested[0] == tested[1] != [], trainer.test(begun, datamodule) != []]


def reloaded_of_rank(rank: int, world_size: int, folder: Path) -> list[Any]:
    become_rank(rank, world_size)
    part = (TWO, "datamodule._target_=test_lightning_hooks.PartOfTheData", "+trainer.reload_dataloaders_every_n_epochs=2")
    part += ("trainer.max_epochs=5", LATE)
    whole = fitted(folder / "run", *part, keep=folder)
    resumed = fitted(folder / "again", *part, ckpt_path=folder / "3.ckpt")
    asked = [sorted({epoch for _, epoch in one.datamodule.asked}) for one in (whole, resumed)]
    return [asked, same(whole, resumed)]


def stopped_of_rank(rank: int, world_size: int, folder: Path) -> list[int]:
    become_rank(rank, world_size)
    first = fitted(folder / "run", TWO, *RECOVERS, STOP + "2}").current_epoch
    path = folder / "run" / "checkpoints" / "last.ckpt"
    return [first, fitted(folder / "run", TWO, *RECOVERS, STOP + "9}", ckpt_path=path).current_epoch]


class Watches(LitClassifier):
    """Its validation logs by its test's name."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test_loss", 1.0)
        return super().validation_step(batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", 3.0)


def watched_of_rank(rank: int, world_size: int, folder: Path) -> list[Any]:
    become_rank(rank, world_size)
    trainer = fitted(folder / "run", TWO, "model._target_=test_lightning_hooks.Watches", "trainer.max_epochs=1")
    trainer.test(trainer.lightning_module, trainer.datamodule, verbose=False)
    metrics = collect_metrics(trainer, read_best(trainer))
    return [metrics["test_loss"], metrics["val/test_loss"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (frozen_of_rank, [[True, True], True, True]),
        (reloaded_of_rank, [[[0, 2, 4], [0, 3, 4]], True]),
        (stopped_of_rank, [3, 6]),
        (watched_of_rank, [3.0, 1.0]),
    ],
)
def test_it_is_so_on_two_processes(function: Any, expected: list[Any], tmp_path: Path) -> None:
    assert in_ranks(2, partial(function, folder=tmp_path), tmp_path) == [expected] * 2
