"""What the jobs of a plan are: their overrides, their losses, and the checkpoints they begin from."""

from pathlib import Path
from typing import Any

import pytest
from in_process import composed, trained

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.plan.callback import LossAtSamples
from lockstep.extras.plan.checkpoints import checkpoints_in
from lockstep.extras.plan.link import measured_link
from lockstep.extras.plan.training import Training

EVERY = ("++events.fast_loop=null", "trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=1000000000")


def training(*overrides: str) -> Training:
    cfg = composed("model=mlp", "trainer.accelerator=cpu", "datamodule.batch_size=32", *overrides, run_dir=Path("run"))
    return Training(cfg, Plan.from_config(cfg), ("model=mlp",))


def values(overrides: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (item.partition("=") for item in overrides)}


def test_a_branch_sees_the_samples_of_its_loss(tmp_path: Path) -> None:
    """Batches of 300; the second epoch's first one begins at 1,200 samples."""
    measure = LossAtSamples([300, 700, 1300], "val/loss")
    _, trainer = trained(tmp_path / "run", *EVERY, extra=[measure])
    assert list(measure.losses) == ["300", "700", "1300"]
    assert trainer.global_step == 5
    assert measure.ended_by == "the plan, after 1300 samples"
    assert measure.facts() == {"loss_at_samples": measure.losses}
    for samples, steps in (("300", 1), ("700", 3)):
        last = LossAtSamples([int(samples)], "val/loss")
        _, shorter = trained(tmp_path / samples, *EVERY, extra=[last])
        assert shorter.global_step == steps
        assert last.losses[samples] == measure.losses[samples]


def test_a_branch_that_is_continued_goes_on_with_its_losses(tmp_path: Path) -> None:
    at = [300, 900, 1500]
    whole, first, rest = (LossAtSamples(at, "val/loss") for _ in range(3))
    trained(tmp_path / "whole", *EVERY, extra=[whole])
    trained(tmp_path / "run", *EVERY, "trainer.max_steps=4", extra=[first])
    assert list(first.losses) == ["300", "900"]
    trained(tmp_path / "run", *EVERY, extra=[rest], ckpt_path=tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert rest.losses == whole.losses


def test_batches_are_divided_into_parts_that_fit_where_the_size_is_searched() -> None:
    cfg = composed("model=mlp", "trainer.accelerator=cpu", "datamodule.global_batch_size=32", run_dir=Path("run"))
    cfg.datamodule.batch_size = 1  # as it is planned until it is known
    plan = Plan.from_config(cfg)
    cfg.datamodule.batch_size = "auto"
    one = Training(cfg, plan, ("model=mlp", "datamodule.batch_size=auto"))
    one.check()
    assert one.is_searched
    assert "trainer.accumulate_grad_batches" not in values(one.timed(1, 4, 2))  # it follows from the search
    one.take_size(24)
    first = values(one.timed(2, 4, 12))
    assert (first["datamodule.batch_size"], first["trainer.accumulate_grad_batches"]) == ("24", "4")  # of 64 samples, 16 at once
    branch = values(one.shortened(4, 0.1, [300], None, None))
    assert (branch["datamodule.batch_size"], branch["trainer.accumulate_grad_batches"]) == ("24", "8")
    cfg.datamodule.global_batch_size = None
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=auto: is no batch to begin with; accepted beside it is"):
        one.check()


@pytest.mark.parametrize(
    ("overrides", "multiple", "expected"),
    [
        (("model/optimizer=sgd",), 4, {"lr_scaling": "linear", "base_batch_size": "32", "model.optimizer.lr": "0.05"}),
        (("model/optimizer=adamw",), 4, {"lr_scaling": "adam", "base_batch_size": "32", "model.optimizer.lr": "0.1"}),
        (
            ("model/optimizer=sgd", "lr_scaling=sqrt", "base_batch_size=8"),
            4,
            {"base_batch_size": "8", "model.optimizer.lr": "0.05"},
        ),
    ],
)
def test_the_rate_that_is_asked_for_is_the_one_after_scaling(
    overrides: tuple[str, ...], multiple: int, expected: dict[str, Any]
) -> None:
    one = training(*overrides)
    given = values(one.with_batch(multiple, 0.2))
    assert given["datamodule.global_batch_size"] == str(32 * multiple)
    assert {key: given[key] for key in expected} == expected
    scaled = training(*overrides, *one.with_batch(multiple, 0.2))
    assert scaled.lr == pytest.approx(0.2)


def test_an_average_of_the_weights_is_over_as_many_samples_whatever_the_batch_is() -> None:
    assert "callbacks.ema.decay" not in values(training().with_batch(4, 0.2))
    averaged = training("callbacks=ema", "callbacks.ema.decay=0.96")
    assert float(values(averaged.with_batch(1, 0.2))["callbacks.ema.decay"]) == 0.96
    assert float(values(averaged.with_batch(4, 0.2))["callbacks.ema.decay"]) == pytest.approx(0.96**4, rel=1e-5)


def test_a_large_batch_is_accumulated_and_not_held_at_once() -> None:
    one = training()
    assert values(one.shortened(8, 0.1, [100], None, None))["trainer.accumulate_grad_batches"] == "8"
    assert values(one.shortened(8, 0.1, [100], 100, None))["trainer.accumulate_grad_batches"] == "4"
    assert values(one.shortened(1, 0.1, [100], None, "a b.ckpt"))["fork"] == "'a b.ckpt'"


def test_the_rule_of_adam_ends_where_its_betas_would_be_negative() -> None:
    assert int(training("model/optimizer=adamw").largest_by_the_rule) == 10
    assert training("model/optimizer=sgd").largest_by_the_rule > 1e6


def test_branches_begin_from_the_first_and_the_last_checkpoint_within_the_training(tmp_path: Path) -> None:
    """last.ckpt and previous.ckpt, a step before it."""
    run = tmp_path / "run"
    trained(run, "trainer.max_epochs=2", "callbacks.best_checkpoint=null")
    assert checkpoints_in(run, 10_000) == {2100: run / "checkpoints" / "previous.ckpt", 2400: run / "checkpoints" / "last.ckpt"}
    assert list(checkpoints_in(run, 2400)) == [2100]
    with pytest.raises(ConfigError, match="has no checkpoint from within its training"):
        checkpoints_in(run, 100)


def test_the_link_is_measured_once_and_a_failure_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measured_link(tmp_path, [1], "gloo") == {}  # no processes, which the script refuses
    assert "plan: the all-reduce can't be measured apart" in capsys.readouterr().err
    (tmp_path / "all_reduce.json").write_text('{"all": {"latency": 1e-4, "bandwidth": 1e9}}')
    assert measured_link(tmp_path, [1, 2], "gloo") == {"latency": 1e-4, "bandwidth": 1e9}


def test_data_without_a_batch_of_all_processes_is_refused() -> None:
    one = training()
    one.cfg.datamodule = {"_target_": "mine.Data", "batch_size": 32}
    with pytest.raises(ConfigError, match=r"^sweep=plan: chooses the batch of all processes; accepted is data of a lockstep"):
        one.check()
