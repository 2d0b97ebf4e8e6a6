"""A new run from another one's checkpoint: bit for bit that run, but for what is changed."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import KeepAll, prepared, trained
from saved_run import save_run
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from lockstep.callbacks import SteppedRate
from lockstep.checkpointing import read_checkpoint
from lockstep.datamodules.batches import Batches
from lockstep.datamodules.samplers import EpochOrder, GlobalBatches
from lockstep.extras.plain_lightning.loaders import shared_loader

FORKED_AT = 6  # of twelve steps, in the second of three epochs
FACTORS: dict[str, Callable[[int], float]] = {
    "cosine": lambda t: (1 + math.cos(math.pi * min(1.0, t / 12))) / 2,
    "steps": lambda t: 0.5 ** (t // 2),
}
SCHEDULES = {
    "constant": ("model/lr_scheduler=constant",),
    "cosine": ("model/lr_scheduler=cosine", "model.lr_scheduler.interval=step", "model.lr_scheduler.min_factor=0"),
    "steps": (
        "~model.lr_scheduler",
        "+model.lr_scheduler={_target_: torch.optim.lr_scheduler.StepLR, step_size: 2, gamma: 0.5, interval: step}",
    ),
}
NOISE = ("model.net.dropout=0.3", "datamodule.augment={crop: 1, flip: true}")


def halved_at_the_fork(optimizer: Any, factors: str) -> LambdaLR:
    """A schedule that was written to change at that step. A factor of 0.5 does not round."""
    return LambdaLR(optimizer, lambda t: FACTORS[factors](t) * (0.5 if t >= FORKED_AT else 1.0))


def kept(folder: Path, *overrides: str) -> tuple[dict[str, Any], Path]:
    """The end of an undisturbed run, and the folder of its checkpoints by step."""
    (folder / "kept").mkdir(parents=True)
    whole, _ = trained(folder / "run", *overrides, extra=[KeepAll(folder / "kept")])
    return whole, folder / "kept"


def fork(run: Path, checkpoint: Path, *overrides: str, changed: tuple[str, ...] = ("model.optimizer.lr",)) -> dict[str, Any]:
    origin = {"run": "another", "step": FORKED_AT, "checkpoint": f"{checkpoint}@{FORKED_AT}", "changed": [*changed]}
    save_run(run, forked_from=origin)
    return trained(run, *overrides, f"fork={checkpoint}", ckpt_path=checkpoint)[0]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["cosine", "steps"])
def test_another_rate_is_that_of_a_schedule_written_to_change_there(schedule: str, tmp_path: Path) -> None:
    whole, checkpoints = kept(tmp_path, *NOISE, *SCHEDULES[schedule])
    same = fork(tmp_path / "same", checkpoints / f"{FORKED_AT}.ckpt", *NOISE, *SCHEDULES[schedule], changed=())
    assert not differences(whole | {"callbacks": None}, same | {"callbacks": None})
    lower = fork(tmp_path / "lower", checkpoints / f"{FORKED_AT}.ckpt", *NOISE, *SCHEDULES[schedule], "model.optimizer.lr=0.001")
    sys.modules["test_fork"] = sys.modules[__name__]
    written = (
        "~model.lr_scheduler",
        f"+model.lr_scheduler={{_target_: test_fork.halved_at_the_fork, interval: step, factors: {schedule}}}",
    )
    expected, _ = trained(tmp_path / "expected", *NOISE, *written)
    assert not differences(expected["state_dict"], lower["state_dict"])
    assert not differences(expected["optimizer_states"][0]["state"], lower["optimizer_states"][0]["state"])
    rates = [content["optimizer_states"][0]["param_groups"][0]["lr"] for content in (expected, lower)]
    assert rates[0] == rates[1]
    assert differences(whole["state_dict"], lower["state_dict"])


def by_hand(checkpoint: Path, start: tuple[int, int], size: int) -> dict[str, Any]:
    """The weights after the third epoch's rest in steps of another size, from a checkpoint at a constant rate: torch alone."""
    datamodule, model, _ = prepared(checkpoint.parent / f"by hand {size}", *SCHEDULES["constant"])
    content = read_checkpoint("source", checkpoint)
    model.load_state_dict(content["state_dict"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(content["optimizer_states"][0])
    batches = GlobalBatches(EpochOrder(1293, 1293 - 1293 % size, 0), size, drop_last=False)
    loader: Any = shared_loader(DataLoader(Batches(datamodule.splits.train), None, sampler=batches), (0, 1), 0, training=True)
    loader.sampler.passed = start
    for epoch in range(start[0], 3):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return model.state_dict()


@pytest.mark.slow
def test_another_batch_or_other_data_counts_from_there_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From the end of an epoch, and from within one: after 600 of 1293 samples, which are three batches of 200; where they are
    one and a half of 400, and of other data, the epoch begins again."""
    _, checkpoints = kept(tmp_path)
    cases = [  # the step, the batch, what is changed, epoch and batches that are over, number of steps in the end
        (8, 150, (), (2, 0), 8 + 8),
        (6, 200, (), (1, 3), 6 + 3 + 6),
        (6, 400, (), (1, 0), 6 + 3 + 3),
        (6, 300, ("datamodule.val_fraction=0.2",), (1, 0), 6 + 3 + 3),
    ]
    lost: list[str] = []
    for step, size, overrides, start, steps in cases:
        caplog.clear()
        run = tmp_path / f"{step} {size}"
        run.mkdir()
        changed = (f"datamodule.batch_size={size}", *overrides)
        again, _ = trained(run, *changed, f"fork={checkpoints}/{step}.ckpt", ckpt_path=checkpoints / f"{step}.ckpt")
        assert (again["global_step"], again["epoch"]) == (steps, 3)
        lost = [record.message for record in caplog.records if "Not carried over" in record.message]
        assert len(lost) == (start == (1, 0))
        if not overrides:
            assert not differences(by_hand(checkpoints / f"{step}.ckpt", start, size), again["state_dict"])
    assert lost == [
        "Not carried over from the checkpoint: epoch 2 begins again, not after 2 batches, since datamodule is another"
    ]


def test_other_data_of_the_same_length_begins_its_epoch_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a loader does, and the size of the batch, do not make it other data."""
    _, checkpoints = kept(tmp_path, "trainer.max_epochs=2")
    save_run(tmp_path, run_id="another")
    options = ("datamodule.batch_size=200", "datamodule.augment={flip: true}")
    for name, keys, steps in (("other", ("datamodule._target_",), 6 + 6), ("same", (), 6 + 3)):
        changed = (*keys, "datamodule.augment", "datamodule.batch_size", "datamodule.num_workers")
        again = fork(tmp_path / name, checkpoints / "6.ckpt", "trainer.max_epochs=2", *options, changed=changed)
        assert again["global_step"] == steps
    lost = [record.message for record in caplog.records if "Not carried over" in record.message]
    where = "epoch 2 begins again, not after 3 batches"
    assert lost == [f"Not carried over from the checkpoint: {where}, since datamodule._target_ is another"]


def test_a_fork_from_the_end_says_that_nothing_was_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path / "run", "trainer.max_epochs=1")
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    datamodule, model, trainer = prepared(tmp_path / "fork", "trainer.max_epochs=1", f"fork={checkpoint}", ckpt_path=checkpoint)
    trainer.fit(model, datamodule, ckpt_path=checkpoint)
    end = "the checkpoint is at the end that trainer.max_epochs=1 sets"
    assert f"Nothing was trained: {end}; a later one lets the fork go on." in caplog.messages


def test_the_moments_of_another_optimizer_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path / "run", "trainer.max_epochs=1", "model/lr_scheduler=one_cycle")
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    other = ("model/optimizer=sgd", "model.optimizer.lr=0.25", "model/lr_scheduler=linear", "trainer.max_epochs=2")
    content, trainer = trained(tmp_path / "fork", *other, f"fork={checkpoint}", ckpt_path=checkpoint)
    assert "momentum_buffer" in content["optimizer_states"][0]["state"][0]
    lost = "Not carried over from the checkpoint: the optimizer's state, which is of AdamW"
    assert lost in [record.message for record in caplog.records]
    assert content["global_step"] == 8
    rates = next(callback for callback in trainer.callbacks if isinstance(callback, SteppedRate))  # pyright: ignore
    assert rates.facts()["lr"] == pytest.approx(0.25 * 0.5)  # at the fifth of eight steps, down to zero
    longer, _ = trained(
        tmp_path / "longer", "model/lr_scheduler=one_cycle", "trainer.max_epochs=2", f"fork={checkpoint}", ckpt_path=checkpoint
    )
    assert longer["lr_schedulers"][0]["total_steps"] == longer["global_step"] == 8


BIAS, WEIGHT = ("layers.1.bias", "layers.1.weight")
OTHERS = {
    "other parameters in a group of that size": (
        (f"+model.param_groups.one.match={BIAS}",),
        (f"+model.param_groups.one.match={WEIGHT}",),
        f"is of model.param_groups.one.match={BIAS}",
    ),
    "an option that needs more of a state": ((), ("+model.optimizer.amsgrad=true",), "has nothing for amsgrad"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_state_that_is_not_that_of_the_same_parameters_is_not_taken(
    other: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, now, why = OTHERS[other]
    trained(tmp_path / "run", "trainer.max_epochs=1", *before)
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    content, _ = trained(tmp_path / "fork", "trainer.max_epochs=2", *now, f"fork={checkpoint}", ckpt_path=checkpoint)
    assert f"Not carried over from the checkpoint: the optimizer's state, which {why}" in caplog.text
    assert content["global_step"] == 8


def test_a_plateau_keeps_what_it_has_seen(tmp_path: Path) -> None:
    plateau = ("model/lr_scheduler=plateau", "model.lr_scheduler.patience=0", "optimized_mode=min")  # worse and worse: it falls
    source, _ = trained(tmp_path / "run", *plateau)
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    for lr, expected in (("0.002", source["optimizer_states"][0]["param_groups"][0]["lr"]), ("0.5", 0.5)):
        options = (*plateau, f"model.optimizer.lr={lr}", "trainer.max_steps=13", "trainer.max_epochs=4")
        _, trainer = trained(tmp_path / lr, *options, f"fork={checkpoint}", ckpt_path=checkpoint)
        rates = next(callback for callback in trainer.callbacks if isinstance(callback, SteppedRate))  # pyright: ignore
        assert rates.facts()["lr"] == expected != 0.002
        assert trainer.lr_scheduler_configs[0].scheduler.best == source["lr_schedulers"][0]["best"]
