"""Several ranks that are asked to stop, or that continue: together, at one step, with nothing lost or done twice.

Ranks are processes of one gloo group that train with Lightning; their parent is tested with ranks that need no torch.
"""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from bitwise import differences
from faults import Poison
from in_process import KeepAll, become_rank, last, preempted, trained, without_batches
from lightning import Callback, LightningModule, Trainer
from ranks import in_ranks
from torch.utils.data import DataLoader

from lockstep.datamodules.seeded import EpochOrder, GlobalBatches
from lockstep.plain_lightning.loaders import shared_loader

pytestmark = pytest.mark.slow
# three epochs of five steps at a global batch of 240
OPTIONS = ("datamodule.global_batch_size=240", "model=cnn", "model.net.width=8")


class Asked(Callback):
    """Sends this process a signal, at one moment of one epoch, on some ranks."""

    def __init__(self, ranks: tuple[int, ...], moment: str, number: int = signal.SIGTERM, epoch: int = 1) -> None:
        self.ranks, self.moment, self.number, self.epoch = ranks, moment, number, epoch

    def _ask(self, trainer: Trainer, moment: str) -> None:
        if moment == self.moment and trainer.global_rank in self.ranks and trainer.current_epoch == self.epoch:
            self.moment = ""
            os.kill(os.getpid(), self.number)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self._ask(trainer, "training")

    def on_validation_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._ask(trainer, "validation")

    def on_save_checkpoint(self, trainer: Trainer, *_: Any) -> None:
        self._ask(trainer, "saving")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ask(trainer, "the end")


class Seen(Callback):
    """The ids of the samples in every training step, by (epoch, number of the batch), as training_step gets them."""

    def __init__(self) -> None:
        self.ids: dict[tuple[int, int], list[int]] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step: Callable[..., Any] = pl_module.training_step

        def noted(batch: Any, batch_idx: int) -> Any:
            assert (trainer.current_epoch, batch_idx) not in self.ids
            self.ids[trainer.current_epoch, batch_idx] = [*trainer.train_dataloader.sampler.draws(batch_idx)]
            return step(batch, batch_idx)

        pl_module.training_step = noted


def broken_off(run: Path, *overrides: str, extra: list[Callback]) -> tuple[int, int]:
    """Return the signal by which a run was preempted, and the step that was saved."""
    return preempted(run, *OPTIONS, *overrides, extra=extra), last(run)["global_step"]


# Any rank, at any moment; both of them, which may each be a step apart, while they train

RANKS = {"training": ((0,), (1,), (0, 1)), "validation": ((1,),), "saving": ((0,),), "the end": ((1,),)}


def stop_at_each_moment(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    options = (f"trainer.devices={world_size}", "trainer.max_epochs=2", "guards.preemption.every_n_steps=3")
    run = folder / "run"
    whole, _ = trained(folder / "whole", *OPTIONS, *options)
    nowhere = {"callbacks": None}  # which say where the best checkpoint is
    result: dict[str, Any] = {}
    for moment in RANKS:
        for ranks in RANKS[moment]:
            dist.barrier()  # the other rank has read what is removed now
            if rank == 0:
                shutil.rmtree(run, ignore_errors=True)
            dist.barrier()
            number, step = broken_off(run, *options, extra=[Asked(ranks, moment, epoch=2 if moment == "the end" else 0)])
            again = trained(run, *OPTIONS, *options, ckpt_path=run / "checkpoints" / "last.ckpt")[0] if ranks == (1,) else whole
            result[f"{moment} {ranks}"] = (number, step, differences(whole | nowhere, again | nowhere))
    return result


def test_any_rank_at_any_moment_stops_all_at_one_step(tmp_path: Path) -> None:
    """They begin to ask each other before every third step, which they read before the next, and ask after each validation, which
    comes after each fifth."""
    result = in_ranks(2, partial(stop_at_each_moment, folder=tmp_path), tmp_path)
    assert result[0] == result[1]
    steps = {name: step for name, (_, step, _) in result[0].items()}
    expected = {"training": 4, "validation": 5, "saving": 4, "the end": 10}
    assert steps == {f"{moment} {ranks}": expected[moment] for moment in expected for ranks in RANKS[moment]}
    assert {number for number, *_ in result[0].values()} == {signal.SIGTERM}
    assert {name: different for name, (_, _, different) in result[0].items() if different} == {}


# Continuing


def continue_from_everywhere(rank: int, world_size: int, folder: Path) -> list[str]:
    become_rank(rank, world_size)
    devices = f"trainer.devices={world_size}"
    noise = ("datamodule.augment={crop: 1, flip: true}", "model/lr_scheduler=cosine", "guards.checkpoint.every_n_steps=2")
    kept = folder / "run" / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    whole, _ = trained(folder / "run", *OPTIONS, *noise, devices, extra=[KeepAll(kept)])
    dist.barrier()
    result = []
    for path in sorted(kept.iterdir(), key=lambda path: int(path.stem))[1::3]:  # each is kept after two batches
        again, _ = trained(folder / "run", *OPTIONS, *noise, devices, ckpt_path=path)
        result += [f"{path.name} {place}" for place in differences(whole, again)]
    assert len(list(kept.iterdir())) >= 10
    return result


def test_two_ranks_continue_bit_for_bit_from_anywhere(tmp_path: Path) -> None:
    assert in_ranks(2, partial(continue_from_everywhere, folder=tmp_path), tmp_path) == [[], []]


def begin(rank: int, world_size: int, run: Path) -> dict[tuple[int, int], list[int]]:
    become_rank(rank, world_size)
    seen = Seen()
    options = (f"trainer.devices={world_size}", "guards.preemption.every_n_steps=1")
    assert broken_off(run, *options, extra=[Asked((world_size - 1,), "training"), seen]) == (signal.SIGTERM, 8)
    return seen.ids


def go_on(rank: int, world_size: int, run: Path) -> dict[tuple[int, int], list[int]]:
    if world_size > 1:
        become_rank(rank, world_size)
    seen = Seen()
    trained(run, *OPTIONS, f"trainer.devices={world_size}", ckpt_path=run / "checkpoints" / "last.ckpt", extra=[seen])
    return seen.ids


def test_a_run_of_four_goes_on_with_two_or_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was broken off after three of the five steps of an epoch: every global batch is trained on once."""
    (tmp_path / "4").mkdir()
    began = in_ranks(4, partial(begin, run=tmp_path / "run"), tmp_path / "4")
    shutil.copytree(tmp_path / "run", tmp_path / "two")
    (tmp_path / "2").mkdir()
    two = in_ranks(2, partial(go_on, run=tmp_path / "two"), tmp_path / "2")
    with caplog.at_level("INFO"):
        one = [go_on(0, 1, tmp_path / "run")]
    line = "Resumed on 1 process(es), begun on 4: the global batches are the same, but sums are in another order"
    assert any(message.startswith(line) for message in caplog.messages)
    batches = GlobalBatches(EpochOrder(1293, 1200, 0), 240, drop_last=False)
    loader: Any = shared_loader(DataLoader(range(1293), None, sampler=batches), (0, 1), 0, training=True)
    expected = {}
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        expected |= {(epoch, batch): {*draws} for batch, draws in enumerate(loader.sampler)}
    for rest in (two, one):
        assert not began[0].keys() & rest[0].keys()
        seen: dict[tuple[int, int], list[int]] = {}
        for rank in (*began, *rest):
            for place, ids in rank.items():
                seen.setdefault(place, []).extend(ids)
        assert {place: len(ids) for place, ids in seen.items()} == dict.fromkeys(expected, 240)
        assert {place: set(ids) for place, ids in seen.items()} == expected
    states = [last(tmp_path / name)["state_dict"] for name in ("two", "run")]
    assert all((states[0][name] - states[1][name]).abs().max() < 1e-3 for name in states[0])


# Steps that are left out, and what Lightning would do


def leave_out(rank: int, world_size: int, folder: Path) -> Any:
    become_rank(rank, world_size)
    devices, skip = f"trainer.devices={world_size}", "guards.nonfinite.action=skip"
    few = ("trainer.max_epochs=1", "trainer.sync_batchnorm=false")
    skipped, _ = trained(folder / "skipped", *OPTIONS, *few, devices, skip, extra=[Poison((2,), ranks=(1,))])
    with pytest.MonkeyPatch.context() as patch:
        without_batches(patch, 2)
        absent, _ = trained(folder / "absent", *OPTIONS, *few, devices)
    return [
        result for part in ("state_dict", "optimizer_states", "metrics") for result in differences(skipped[part], absent[part])
    ]


def test_a_step_is_left_out_by_all_when_one_rank_s_loss_is_nan(tmp_path: Path) -> None:
    assert in_ranks(2, partial(leave_out, folder=tmp_path), tmp_path) == [[], []]
