"""Plain LightningModules on virtual workers: the same bits on one process and two, of weights, buffers and all metrics."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences
from in_process import composed, last, logged
from lightning import Callback, Trainer
from ranks import in_ranks
from test_exact import without_place

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError

pytest.importorskip("lockstep.plain_lightning")
RUN = (
    "trainer.accelerator=cpu",
    "trainer.max_epochs=2",
    "trainer.exact=4",
    "test=false",
    "logger=csv",
)
RUN += ("trainer.enable_progress_bar=false", "guards.watchdog=null", "trainer.log_every_n_steps=1", "++callbacks.progress=null")
RUN += ("optimized_mode=min", "datamodule=none")
DATA = {"_target_": "plain_modules.Ragged"}
CASES: dict[str, tuple[str, Any, str]] = {
    "ragged": ("Plain", DATA, "val/error"),
    "drop_last, data worker": ("Plain", DATA | {"drop_last": True, "workers": 1}, "val/error"),
    "own loaders, LBFGS": ("OwnLoaders", None, "val/loss"),
    "batches left out": ("LeavesOut", None, "val/loss"),
}


class Metrics(Callback):
    """Those of every epoch, as callbacks see them."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.epochs.append({name: value.clone() for name, value in trainer.callback_metrics.items()})

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_train_epoch_end(trainer, pl_module)


def built(name: str, data: Any, world_size: int, folder: Path, metric: str) -> tuple[Any, Any, Any]:
    cfg = composed(*RUN, f"optimized_metric={metric}", f"trainer.devices={world_size}", run_dir=folder)
    cfg.model, cfg.datamodule = {"_target_": f"plain_modules.{name}"}, data
    folder.mkdir(parents=True, exist_ok=True)
    return build(cfg, Plan.from_config(cfg))


def train_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    results = {}
    for number, (case, (name, data, metric)) in enumerate(CASES.items()):
        run = folder / f"{world_size}/{number}"
        datamodule, model, trainer = built(name, data, world_size, run, metric)
        trainer.callbacks.append(metrics := Metrics())
        trainer.fit(model, datamodule)
        seen = {f"{epoch}.{name}": value for epoch, each in enumerate(metrics.epochs) for name, value in each.items()}
        points = {f"{step} {name}": value for (step, name), value in logged(run).items()} if rank == 0 else {}
        results[case] = {"checkpoint": without_place(last(run)), "metrics": seen, "points": points}
    return results


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    runs = {}
    for size in (1, 2):
        folder = tmp_path_factory.mktemp(f"plain{size}")
        runs[size] = in_ranks(size, partial(train_all, folder=folder), folder)
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_plain_modules_are_the_same_to_the_bit(case: str, trained: dict[int, list[dict[str, Any]]]) -> None:
    one = trained[1][0][case]
    assert one["checkpoint"]["global_step"] >= 6
    assert len(one["points"]) > 10
    assert {size: differences(one, ranks[0][case]) for size, ranks in trained.items()} == {1: [], 2: []}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ByHand", "ByHand has automatic_optimization=False, and steps its optimizers before"),
        ("Gathers", "Gathers calls self.all_gather within a step"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(name: str, why: str, tmp_path: Path) -> None:
    datamodule, model, trainer = built(name, None, 1, tmp_path, "train/loss")
    with pytest.raises(ConfigError) as refused:
        trainer.fit(model, datamodule)
    assert str(refused.value).startswith(f"trainer.exact=4: {why}")
    assert "\n" not in str(refused.value)
    assert trainer.global_step == 0
