"""Layers frozen and unfrozen in training: two processes train them as one does, and a run goes on as it would have."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import KeepAll, last, prepared
from lightning import Callback
from lightning.pytorch.callbacks import BaseFinetuning
from ranks import in_ranks
from torch.optim import Adam, Optimizer

from lockstep.callbacks.checkpoints import SavesFirst

OPTIONS = ("model=mlp", "trainer.precision=64-true", "trainer.max_epochs=3", "datamodule.global_batch_size=300")
LATE = "net.layers.1.weight"


class Unfreeze(BaseFinetuning):
    """Lightning's, from the second epoch on, at a tenth of the rate."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net.layers[1])
        pl_module.configure_optimizers = lambda: Adam(filter(lambda p: p.requires_grad, pl_module.parameters()), lr=0.01)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net.layers[1], optimizer)


class OfItsOwn(Callback):
    """Trains one layer until the sixth batch, then another; the optimizer has all parameters from the start."""

    trains_both = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.net.layers[1].requires_grad_(False)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 6:  # of four an epoch
            pl_module.net.layers[1].requires_grad_(True)
            pl_module.net.layers[4].requires_grad_(self.trains_both)


class WithinAnEpoch(OfItsOwn):
    """DDP waits for the gradients of all that it has wrapped: none may be frozen later."""

    trains_both = True


def ended(run: Path, kind: type[Callback], *options: str, step: int | None = None) -> dict[str, Any]:
    """The last checkpoint of a run with such a callback where a config's callbacks are; of one that goes on from a step."""
    (kept := run / "kept").mkdir(parents=True, exist_ok=True)
    path = None if step is None else kept / f"{step}.ckpt"
    datamodule, model, trainer = prepared(run, *OPTIONS, *options, ckpt_path=path)
    first = next(i for i, one in enumerate(trainer.callbacks) if isinstance(one, SavesFirst))
    trainer.callbacks[first + 1 : first + 1] = [kind(), *([KeepAll(kept)] if step is None else [])]
    trainer.fit(model, datamodule, ckpt_path=path)
    assert not trainer.strategy.__dict__.get("frozen")
    return last(run)


def assert_same(resumed: dict[str, Any], whole: dict[str, Any]) -> None:
    for key in ("state_dict", "optimizer_states", "requires_grad"):
        assert not differences(resumed[key], whole[key]), key


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize("step", [2, 7])
@pytest.mark.parametrize("kind", [Unfreeze, OfItsOwn])
def test_a_run_that_goes_on_ends_with_the_same_bits(kind: type[Callback], step: int, tmp_path: Path) -> None:
    whole = ended(tmp_path / "run", kind)
    assert sum(whole["requires_grad"].values()) == 2  # a weight and a bias are trained by now
    before = torch.load(tmp_path / "run" / "kept" / f"{step}.ckpt", weights_only=True)["state_dict"][LATE]
    assert not torch.equal(before, whole["state_dict"][LATE])  # it is trained afterwards
    assert_same(ended(tmp_path / "run", kind, step=step), whole)


def test_what_the_config_freezes_from_the_start_stays_frozen(tmp_path: Path) -> None:
    """Also in the midst of a run that began without."""
    datamodule, model, trainer = prepared(tmp_path, *OPTIONS, "trainer.max_epochs=1")
    trainer.fit(model, datamodule)
    before = last(tmp_path)["state_dict"][LATE]
    datamodule, model, trainer = prepared(tmp_path, *OPTIONS)
    model.net.layers[1].requires_grad_(False)
    trainer.fit(model, datamodule, ckpt_path=tmp_path / "checkpoints" / "last.ckpt")
    assert torch.equal(before, model.net.layers[1].weight)


def train_rank(rank: int, world_size: int, run: Path, kind: type[Callback], step: int | None = None) -> dict[str, Any]:
    return ended(run, kind, f"trainer.devices={world_size}", step=step)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize("kind", [Unfreeze, WithinAnEpoch])
def test_two_processes_unfreeze_as_one_does_and_go_on_with_it(kind: type[Callback], tmp_path: Path) -> None:
    """DDP wraps the model anew."""
    run = tmp_path / "run"
    train = partial(in_ranks, 2, folder=tmp_path)
    whole, other = train(partial(train_rank, run=run, kind=kind))
    assert not differences(whole["state_dict"], other["state_dict"])
    one = ended(tmp_path / "one", kind)
    torch.testing.assert_close(whole["state_dict"], one["state_dict"], rtol=1e-9, atol=1e-12)
    if kind is Unfreeze:
        for rank in train(partial(train_rank, run=run, kind=kind, step=7)):
            assert_same(rank, whole)
