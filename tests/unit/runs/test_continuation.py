"""A run that is resumed: what the checkpoint's state would overrule is refused."""

from pathlib import Path
from typing import Any

import pytest
from in_process import prepared, trained
from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.runs.composition import compose
from lockstep.runs.continuation import check_continuation

OPTIONS = ("trainer.max_epochs=1", "model/lr_scheduler=cosine")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After an epoch of four batches of 300, at a rate of 0.002."""
    run = tmp_path_factory.mktemp("first")
    trained(run, *OPTIONS)
    return run / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "model.optimizer.lr=1e-4",
            "model.optimizer.lr=0.0001: {} was trained with 0.002, {}; accepted is 0.002, or a new run, by fork=",
        ),
        ("model.optimizer.weight_decay=0", "model.optimizer.weight_decay=0: {} was trained with 0.01, {}; accepted is 0.01, "),
        ("+model.optimizer.amsgrad=true", "model.optimizer.amsgrad=true: {} was trained with null, "),
        ("model/optimizer=sgd", "model.optimizer._target_=torch.optim.SGD: {} was trained with torch.optim.AdamW, "),
        ("model/lr_scheduler=linear", "model.lr_scheduler._target_=lockstep.models.schedules.linear: {} was trained with "),
        ("model.lr_scheduler.warmup_steps=2", "model.lr_scheduler.warmup_steps=2: {} was trained with 0, "),
        ("+model.param_groups={biases: {match: bias}}", "model.param_groups.biases.match=bias: {} was trained with null, "),
        ("lr_scaling=linear", "model.optimizer.lr=0.009375: {} was trained with 0.002, "),
    ],
)
def test_another_rate_optimizer_or_schedule_is_refused(override: str, line: str, checkpoint: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        prepared(checkpoint.parents[1], *OPTIONS, "trainer.max_epochs=2", override, ckpt_path=checkpoint)
    assert str(refused.value).startswith(line.format(checkpoint, "and goes on with it"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimized_metric=val/loss", "optimized_mode=min"],
        ["trainer.devices=2", "datamodule.global_batch_size=300"],
        ["trainer.accumulate_grad_batches=2", "datamodule.batch_size=150"],
        ["lr_scaling=linear", "base_batch_size=300"],
    ],
)
def test_what_leaves_them_as_they_were_is_accepted(overrides: list[str], checkpoint: Path) -> None:
    prepared(checkpoint.parents[1], *OPTIONS, "trainer.max_epochs=2", *overrides, ckpt_path=checkpoint)


def test_the_rate_that_is_recorded_is_that_of_the_whole_training(checkpoint: Path) -> None:
    _, trainer = trained(checkpoint.parents[1], *OPTIONS, "trainer.max_epochs=2", ckpt_path=checkpoint)
    assert trainer.global_step == 8
    (rate,) = (callback for callback in trainer.callbacks if hasattr(callback, "trained_with"))  # pyright: ignore
    assert rate.facts()["lr"] == 0.002


@pytest.mark.parametrize("schedule", ["one_cycle", "plateau"])
def test_a_run_of_before_its_schedule_moved_goes_on(schedule: str, tmp_path: Path) -> None:
    cfg = compose(f"model/lr_scheduler={schedule}", f"run_dir={tmp_path}")
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    model["lr_scheduler"]["_target_"] = f"lockstep.models.schedules.{schedule}"
    check_continuation(cfg, Plan.from_config(cfg), {"hyper_parameters": {"model": model}}, tmp_path / "last.ckpt")
