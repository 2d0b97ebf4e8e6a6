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
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from lockstep.callbacks import SteppedRate
from lockstep.checkpointing import read_checkpoint
from lockstep.datamodules.batches import Batches
from lockstep.datamodules.seeded import EpochOrder, GlobalBatches
from lockstep.errors import ConfigError
from lockstep.plain_lightning.loaders import shared_loader

FORKED_AT = 6  # of twelve steps, in the second of three epochs
FACTORS: dict[str, Callable[[int], float]] = {
    "cosine": lambda t: (1 + math.cos(math.pi * min(1.0, t / 12))) / 2,
    "steps": lambda t: 0.5 ** (t // 2),
}
SCHEDULES = {
    "constant": ("model/lr_scheduler=constant",),
    "cosine": ("model/lr_scheduler=cosine", "model.lr_scheduler.min_factor=0"),
    "steps": (
        "~model.lr_scheduler",
        "+model.lr_scheduler={_target_: torch.optim.lr_scheduler.StepLR, step_size: 2, gamma: 0.5, interval: step}",
    ),
}
LOST = "Not carried over from the checkpoint: the optimizer's state, which is of another one or of other groups"
NOISE = ("model.net.dropout=0.3", "datamodule.augment={crop: 1, flip: true}")


def halved_at_the_fork(optimizer: Any, factors: str) -> LambdaLR:
    """A schedule that was written to change at that step. A factor of 0.5 does not round."""
    return LambdaLR(optimizer, lambda t: FACTORS[factors](t) * (0.5 if t >= FORKED_AT else 1.0))


def kept(folder: Path, *overrides: str) -> tuple[dict[str, Any], Path]:
    """The end of an undisturbed run, and the folder of its checkpoints by step."""
    (folder / "kept").mkdir(parents=True)
    whole, _ = trained(folder / "run", *overrides, extra=[KeepAll(folder / "kept")])
    return whole, folder / "kept"


def fork(run: Path, checkpoint: Path, *overrides: str, changed: str = "model.optimizer.lr") -> tuple[dict[str, Any], Any]:
    """The end of a run that begins from a checkpoint, with the keys that are `changed`, and its trainer."""
    origin = f"forked_from={{changed: [{changed}]}}"
    return trained(run, *overrides, f"fork={checkpoint}", origin, ckpt_path=checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["cosine", "steps"])
def test_another_rate_is_that_of_a_schedule_written_to_change_there(schedule: str, tmp_path: Path) -> None:
    whole, checkpoints = kept(tmp_path, *NOISE, *SCHEDULES[schedule])
    checkpoint = checkpoints / f"{FORKED_AT}.ckpt"
    same, _ = fork(tmp_path / "same", checkpoint, *NOISE, *SCHEDULES[schedule], changed="")
    assert not differences(whole | {"callbacks": None}, same | {"callbacks": None})
    lower, _ = fork(tmp_path / "lower", checkpoint, *NOISE, *SCHEDULES[schedule], "model.optimizer.lr=0.001")
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
    """From the end of an epoch; from within one, which begins again."""
    _, checkpoints = kept(tmp_path)
    batch, data = "datamodule.batch_size", "datamodule.val_fraction"
    cases = [  # the step, what is changed, the epoch from which the fork goes on, number of steps in the end
        (8, {batch: 150}, 2, 8 + 8),
        (6, {batch: 200}, 1, 6 + 6 + 6),
        (6, {data: 0.2}, 1, 6 + 3 + 3),
        (6, {"datamodule.num_workers": 1}, None, 12),
    ]
    for step, new, epoch, steps in cases:
        caplog.clear()
        overrides = [f"{key}={value}" for key, value in new.items()]
        again, _ = fork(tmp_path / f"{step} {new}", checkpoints / f"{step}.ckpt", *overrides, changed=",".join(new))
        assert (again["global_step"], again["epoch"]) == (steps, 3)
        line = f"Epoch 2 begins again, since its batches change with {', '.join(new)}"
        assert (line in caplog.messages) == (epoch == 1)
        if batch in new:
            assert not differences(by_hand(checkpoints / f"{step}.ckpt", (epoch, 0), new[batch]), again["state_dict"])


def test_a_fork_from_the_end_would_train_nothing_and_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run", "trainer.max_epochs=1")
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    with pytest.raises(ConfigError, match=r"^trainer.max_epochs=1: .* is of epoch 1; use more than 1, or -1$"):
        fork(tmp_path / "fork", checkpoint, "trainer.max_epochs=1", changed="")


def test_the_moments_of_another_optimizer_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path / "run", "trainer.max_epochs=1", "model/lr_scheduler=one_cycle")
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    other = ("model/optimizer=sgd", "model.optimizer.lr=0.25", "model/lr_scheduler=linear", "trainer.max_epochs=2")
    content, trainer = fork(tmp_path / "fork", checkpoint, *other)
    assert "momentum_buffer" in content["optimizer_states"][0]["state"][0]
    assert LOST in caplog.messages
    assert content["global_step"] == 8
    rates = next(callback for callback in trainer.callbacks if isinstance(callback, SteppedRate))  # pyright: ignore
    assert rates.facts()["lr"] == pytest.approx(0.25 * 0.5)  # at the fifth of eight steps, down to zero
    longer, _ = fork(
        tmp_path / "longer", checkpoint, "model/lr_scheduler=one_cycle", "trainer.max_epochs=2", changed="trainer.max_epochs"
    )
    assert longer["lr_schedulers"][0]["total_steps"] == longer["global_step"] == 8


def test_a_plateau_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plateau = ("model/lr_scheduler=plateau", "model.lr_scheduler.patience=0", "optimized_mode=min")  # worse and worse: it falls
    trained(tmp_path / "run", *plateau)
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    _, trainer = fork(tmp_path / "fork", checkpoint, *plateau, "model.optimizer.lr=0.5", "trainer.max_epochs=4")
    rates = next(callback for callback in trainer.callbacks if isinstance(callback, SteppedRate))  # pyright: ignore
    assert rates.facts()["lr"] == 0.5
    assert "Not carried over from the checkpoint: ReduceLROnPlateau, which begins anew" in caplog.text
