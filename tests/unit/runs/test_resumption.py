"""A run that is broken off at any step and continued ends where the unbroken one does, bit for bit."""

from pathlib import Path

import pytest
import torch
from bitwise import differences
from in_process import KeepAll, logged, trained

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.net.dropout=0.3", "datamodule.augment={crop: 1, flip: true}", "model/lr_scheduler=cosine"),
        (
            *("trainer.accumulate_grad_batches=2", "datamodule.batch_size=150", "datamodule.drop_last=false"),
            # its third epoch is judged by a validation of the second
            *("model/lr_scheduler=plateau", "+model.lr_scheduler.frequency=3", "trainer.check_val_every_n_epoch=2"),
        ),
        ("trainer.max_steps=12", "trainer.max_epochs=-1", "model/lr_scheduler=one_cycle", "trainer.check_val_every_n_epoch=2"),
        ("datamodule.num_workers=2", "datamodule.augment={crop: 1, flip: true}"),
    ],
    ids=["dropout", "accumulation", "max_steps", "workers"],
)
def test_continuing_from_any_step_changes_nothing(overrides: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    kept = run / "kept"
    kept.mkdir(parents=True)
    whole, _ = trained(run, *overrides, extra=[KeepAll(kept)])
    log = logged(run)
    assert {name for _, name in log} >= {"lr", "train/loss_step", "train/loss", "val/acc"}
    steps = sorted(kept.iterdir(), key=lambda path: int(path.stem))
    assert len(steps) >= 10
    is_short = "model.net.dropout=0.3" in overrides
    for path in steps if is_short else [*steps[1::3], steps[-1]]:
        again, _ = trained(run, *overrides, ckpt_path=path)
        assert not differences(whole, again), path.name
        assert logged(run) == log, path.name


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_continued_in_other_batches_it_makes_the_same_steps(before: int, after: int, tmp_path: Path) -> None:
    """1293 samples in steps of 300, the last of 93; equal but for the rounding of sums in another order."""

    def batches(accumulate: int) -> tuple[str, ...]:
        size = ("datamodule.global_batch_size=300", "datamodule.drop_last=false")
        return (*size, f"trainer.accumulate_grad_batches={accumulate}", "trainer.max_epochs=2")

    run = tmp_path / "run"
    kept = run / "kept"
    kept.mkdir(parents=True)
    whole, _ = trained(run, *batches(before), extra=[KeepAll(kept)])
    log = logged(run)
    for path in sorted(kept.iterdir())[::3]:
        again, _ = trained(run, *batches(after), ckpt_path=path)
        assert again["global_step"] == whole["global_step"] == 10
        assert logged(run).keys() == log.keys()
        for name, weight in whole["state_dict"].items():
            torch.testing.assert_close(again["state_dict"][name], weight, rtol=1e-4, atol=1e-5)
