"""Code that knows nothing of Lockstep, trained as it is, in the tests' own process."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import PLAIN
from in_process import SMALL, KeepAll, composed, last, logged
from omegaconf import OmegaConf
from plain_lightning import DigitsData, LitClassifier
from torch.utils.data import DataLoader

from hydra_plugins.lockstep_plugins import rename_rate
from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.plain_lightning.loaders import SharedSampler
from lockstep.runs.results import collect_facts
from lockstep.runs.validation import refusing, validated

GOES_ON = "ignore:You're resuming from a checkpoint that ended before the epoch ended"  # as Lightning says of all plain loaders
MINE = (PLAIN, "model=mine", "datamodule=mine")
QUIET = tuple(override for override in SMALL if not override.startswith("datamodule"))
METRIC = ("optimized_metric=val_acc",)


def fitted(run_dir: Path, *overrides: str, keep: Path | None = None, ckpt_path: Path | None = None) -> Any:
    """The trainer, after two epochs of 14 batches."""
    run_dir.mkdir(exist_ok=True)
    cfg = composed(*QUIET, "trainer.max_epochs=2", *MINE, *METRIC, *overrides, run_dir=run_dir)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg), ckpt_path)
    trainer.callbacks[0:0] = [] if keep is None else [KeepAll(keep)]  # pyright: ignore
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of an undisturbed run and of its checkpoints by the number of batches before them, and its trainer."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, fitted(folder / "run", keep=folder)


class SomeAreTested(DigitsData):
    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, 10, sampler=range(150, 198))


def test_batches_that_are_overfitted_are_shared_out(tmp_path: Path) -> None:
    """Lightning puts samplers of its own in the place of those that draw a shuffled order, and repeats samples then."""
    options = ("+trainer.overfit_batches=2", "datamodule._target_=test_plain_lightning.SomeAreTested")
    trainer = fitted(tmp_path / "run", *options, "trainer.max_epochs=1")
    assert isinstance(sampler := trainer.train_dataloader.sampler, SharedSampler)
    assert [index for draws in sampler for index in draws] == [*range(1400)]
    assert trainer.global_step == 2
    trainer.test(trainer.lightning_module, trainer.datamodule, verbose=False)
    assert [index for draws in trainer.test_dataloaders.sampler for index in draws] == [*range(150, 198)]


@pytest.mark.parametrize("batches", [14, 20], ids=["from the end of an epoch", "from within one"])
def test_a_run_that_is_continued_ends_bit_for_bit_as_one_that_was_not(
    batches: int, whole: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.rand(7)  # what other code has drawn does not matter
    with caplog.at_level(logging.INFO):
        trainer = fitted(tmp_path / "run", ckpt_path=whole[0] / f"{batches}.ckpt")
    assert ("within an epoch, after its first 6 batches" in caplog.text) == (batches == 20)
    assert collect_facts(trainer)["samples_trained"] == 2800
    own, other = last(tmp_path / "run"), last(whole[0] / "run")
    assert own["global_step"] == other["global_step"] == 28
    assert all(torch.equal(own["state_dict"][name], tensor) for name, tensor in other["state_dict"].items())
    momenta = [[state["momentum_buffer"] for state in c["optimizer_states"][0]["state"].values()] for c in (own, other)]
    assert all(map(torch.equal, *momenta))
    assert own["lr_schedulers"] == other["lr_schedulers"]


def test_a_batch_size_is_found_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that went on found it again, and trained from step 0; a test had the record count no steps."""
    finder = "{_target_: lightning.pytorch.callbacks.BatchSizeFinder, init_val: 50, max_trials: 1}"
    how = (f"+callbacks.finder={finder}", "model._target_=test_plain_lightning.AtOneRate")
    trainer = fitted(tmp_path / "run", *how, "trainer.max_epochs=1")
    trainer.test(trainer.lightning_module, trainer.datamodule, verbose=False)
    facts = collect_facts(trainer)
    assert facts["steps"] * facts["batch_size"] == facts["samples_trained"] == 1400
    assert not any(message.endswith("before they had ") for message in caplog.messages)
    found, path = "datamodule.batch_size=50", tmp_path / "run" / "checkpoints" / "last.ckpt"
    again = fitted(tmp_path / "run", *how, found, ckpt_path=path)
    assert (again.global_step, collect_facts(again)["samples_trained"]) == (2 * facts["steps"], 2800)
    assert "BatchSizeFinder: a run that goes on has the rate of its checkpoint" in caplog.text


@pytest.mark.filterwarnings(GOES_ON)
def test_within_an_epoch_batches_keep_their_size_and_order(
    whole: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another number of processes changes it, too: after 6 batches of 50 some samples would be trained on twice."""
    another = ("datamodule.batch_size=50", "forked_from={changed: [trainer.devices]}")
    with pytest.raises(ConfigError, match=r"^checkpoint=.*20\.ckpt: is within an epoch of other batches, or in another order: "):
        fitted(tmp_path / "within", *another, f"fork={whole[0]}/20.ckpt", ckpt_path=whole[0] / "20.ckpt")
    with pytest.raises(ConfigError, match=r"20\.ckpt: is within an epoch of other batches, or in another order: "):
        fitted(tmp_path / "order", "seed=1", another[1], f"fork={whole[0]}/20.ckpt", ckpt_path=whole[0] / "20.ckpt")
    there = whole[0] / "14.ckpt"
    trainer = fitted(tmp_path / "between", *another, f"fork={there}", ckpt_path=there)
    assert trainer.global_step == 14 + 28
    assert "From here on batches have [50] samples; before they had [100]" in caplog.messages


def test_what_a_checkpoint_would_overrule_is_refused(whole: tuple[Path, Any]) -> None:
    line = r"^checkpoint=.*: its CosineAnnealingLR goes on with T_max=28, here it would have 42; "
    with pytest.raises(ConfigError, match=line):
        fitted(whole[0], "trainer.max_epochs=3", ckpt_path=whole[0] / "14.ckpt")


class AtOneRate(LitClassifier):
    """Without the schedule."""

    def configure_optimizers(self) -> Any:
        return super().configure_optimizers()["optimizer"]


def test_a_checkpoint_is_read_by_lightning_s_load_from_checkpoint(whole: tuple[Path, Any]) -> None:
    best = whole[0] / "run" / "checkpoints" / "best.ckpt"
    assert LitClassifier.load_from_checkpoint(best).hparams["hidden"] == 16


@pytest.mark.filterwarnings("ignore:Attribute 'net' is an instance of")
def test_a_network_among_the_hyperparameters_is_left_out_of_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = "+model.net={_target_: torch.nn.Linear, in_features: 64, out_features: 10}"
    fitted(tmp_path, net, "trainer.limit_train_batches=1", "trainer.max_epochs=1")
    kept = last(tmp_path)["hyper_parameters"]
    assert kept == {"hidden": 16, "lr": 0.05, "dropout": 0.2}
    assert len([line for line in caplog.messages if "Checkpoints are written without hyper_parameters.net, which" in line]) == 1


ADVERSARY = ("~model.hidden", "~model.lr", "model._target_=plain_lightning.LitAdversary")
ADVERSARY += ("test=false", "optimized_metric=val_realness", "optimized_mode=max", "trainer.max_epochs=1")


@pytest.mark.filterwarnings(GOES_ON)
def test_what_two_optimizers_by_hand_have_logged_after_the_checkpoint_is_logged_anew(tmp_path: Path) -> None:
    run, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoints" / "last.ckpt"
    fitted(run, *ADVERSARY, keep=tmp_path)
    shutil.copy(tmp_path / "7.ckpt", checkpoint)
    assert fitted(run, *ADVERSARY, ckpt_path=checkpoint).global_step == 28
    points = logged(run)  # each of them once
    assert [step for step, name in points if name == "critic_loss"] == [*range(14)]
    assert {step for step, name in points if name == "lr"} <= {*range(14)}


def test_the_rate_that_a_module_takes_is_scaled(tmp_path: Path) -> None:
    cfg = composed(*QUIET, *MINE, *METRIC, "lr_scaling=linear", "base_batch_size=50", run_dir=tmp_path)
    assert build(cfg, Plan.from_config(cfg))[1].hparams["lr"] == 0.1


def test_a_test_that_a_module_lacks_is_left_out_and_refused_where_it_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = composed(*QUIET, *MINE, *METRIC, run_dir=tmp_path)
    cfg.model = {"_target_": "lightning_modules.GAN"}
    for changes, line in (
        ({"test": True}, r"^test=true: GAN has no test_step; use test=auto"),
        ({"optimized_metric": "test_acc"}, r"^test=auto: GAN has no test_step; use test=auto, and no metric of a test$"),
    ):
        with pytest.raises(ConfigError, match=line):
            build(changed := OmegaConf.merge(cfg, changes), Plan.from_config(changed))
    build(cfg, Plan.from_config(cfg))
    assert (cfg.test, caplog.messages[-1]) == (False, "Nothing will be tested: GAN has no test_step.")


def test_a_global_batch_is_divided_for_data_that_knows_only_that_of_a_process(tmp_path: Path) -> None:
    given = (*QUIET, *MINE, *METRIC, "+datamodule.global_batch_size=48", "trainer.devices=2")
    cfg = composed(*given, run_dir=tmp_path)
    datamodule, _, _ = build(cfg, validated(cfg)[1])
    assert datamodule is not None
    assert datamodule.hparams["batch_size"] == 24


def test_a_sweep_over_rates_is_refused_where_the_module_s_yaml_has_none(capfd: pytest.CaptureFixture[str]) -> None:
    params = {"trainer.devices": "1,2", "model.optimizer.lr": "1e-3,3e-3"}
    cfg = OmegaConf.create({"model": {"_target_": "mine.Net", "width": 3}, "hydra": {"sweeper": {"params": params}}})
    with pytest.raises(SystemExit, match="2"), refusing():
        rename_rate(cfg)
    assert capfd.readouterr().err.startswith(
        "model._target_=mine.Net: its YAML has no lr or learning_rate for this sweep to vary; "
    )
    cfg.model.lr = 0.1
    rename_rate(cfg)
    assert "model.lr" in cfg.hydra.sweeper.params
