"""From a composed config to the three objects of a run."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch import loggers
from lightning.pytorch.callbacks import Callback, Checkpoint, LambdaCallback, ProgressBar
from lightning.pytorch.plugins.precision import DoublePrecision
from omegaconf import DictConfig, OmegaConf
from torch import nn

from lockstep.callbacks import LastCheckpoint, SteppedRate
from lockstep.callbacks.checkpoints import SavesFirst
from lockstep.callbacks.every_run import FirstValidation, LightningCallbacks, SchedulesAsBefore, TrainedParameters
from lockstep.callbacks.randomness import draw_alike_in_setup
from lockstep.config.arguments import arguments_of
from lockstep.config.construct import arguments_in, construct, resolve
from lockstep.config.plan import Plan
from lockstep.datamodules.training_data import check_training_data
from lockstep.errors import config_error
from lockstep.launchers.environment import launcher
from lockstep.models.from_checkpoint import load_compiled_or_not, load_weights, read_for
from lockstep.models.from_config import build_model, plain_spec
from lockstep.runs.results import lacking_for_test
from lockstep.trainer.lightning_internals import (
    disable_sigterm_handling,
    drop_commentary,
    read_logged_step,
)
from lockstep.trainer.loggers import CSVLogger

log = logging.getLogger(__name__)


def build(
    cfg: DictConfig, plan: Plan, checkpoint: Path | None = None
) -> tuple[LightningDataModule | None, LightningModule, Trainer]:
    """Returns the three parts of a run. The weights drawn depend on the seed alone: not on the data, the rank, or the world.

    `checkpoint` is what the trainer will be fitted from: the run's own, or another one's that it begins from."""
    drop_commentary()
    strategy = _build_strategy(cfg, plan)  # first: one may set the number of threads, on which the bits of drawn weights depend
    datamodule = _build_datamodule(cfg, plan)
    seed_everything(cfg.seed, workers=True, verbose=False)
    model = _build_model(cfg, plan, datamodule)
    check_training_data(model, datamodule is not None)
    load_compiled_or_not(model)
    draw_alike_in_setup(model if datamodule is None else datamodule)
    trainer = build_trainer(cfg, plan, _step_to_continue_from(cfg, plan, model, checkpoint), strategy)
    stepped = SteppedRate({"lr": plan.lr, "global_batch_size": plan.global_batch_size})
    # schedules first: Lightning's averaging of weights takes them away where it goes on; others unfreeze as an epoch begins
    first = (SchedulesAsBefore(), TrainedParameters(), stepped)
    trainer.callbacks = [*first, *trainer.callbacks, FirstValidation()]  # pyright: ignore[reportAttributeAccessIssue]
    if cfg.fork is not None and checkpoint is not None and not checkpoint.is_relative_to(cfg.run_dir):
        from lockstep.callbacks.forked import forked_from

        trainer.callbacks.append(forked_from(cfg, model, checkpoint))  # pyright: ignore[reportAttributeAccessIssue]
    trainer.callbacks.append(LightningCallbacks())  # pyright: ignore[reportAttributeAccessIssue]
    if cfg.test and (lacking := lacking_for_test(model, datamodule)) is not None:
        _leave_out_test(cfg, lacking)
    disable_sigterm_handling(trainer)
    # at once: Lightning converts after it has loaded a checkpoint and copied the weights to be averaged, which rounds them
    trainer.precision_plugin.convert_module(model)
    if cfg.init_from is not None:
        load_weights(model, "init_from", Path(cfg.init_from), OmegaConf.select(cfg, "init_without"))
    if cfg.trainer.sync_batchnorm and plan.world_size > 1:
        from lockstep.trainer.batchnorm import synchronise_batchnorm

        synchronise_batchnorm(model)
        later = LambdaCallback(on_fit_start=lambda _, module: synchronise_batchnorm(module))  # layers that its hooks have made
        trainer.callbacks = [later, *trainer.callbacks]  # pyright: ignore[reportAttributeAccessIssue]
    return datamodule, model, trainer


def _build_datamodule(cfg: DictConfig, plan: Plan) -> LightningDataModule | None:
    if cfg.datamodule is None:
        return None
    settings = _plain(cfg, "datamodule")
    given = {}
    if "batch_size" in settings:  # is divided from the global one, which a class of the user's own need not take
        own, total = settings["batch_size"], settings.pop("global_batch_size", None)
        settings["batch_size"] = plan.batch_size
        given = {"global_batch_size": total} if own is None and total is not None else {}
    datamodule = construct("datamodule", settings, given)
    if not isinstance(datamodule, LightningDataModule):
        raise config_error("datamodule._target_", cfg.datamodule._target_, "use a LightningDataModule")
    return datamodule


def _build_model(cfg: DictConfig, plan: Plan, datamodule: LightningDataModule | None) -> LightningModule:
    model_config = {"model": _plain(cfg, "model"), "spec": plain_spec(datamodule)}
    return build_model(model_config, plan.lr)


def _leave_out_test(cfg: DictConfig, lacking: str) -> None:
    """Raises ConfigError where the config needs a test: before training, which would end with that."""
    if cfg.test != "auto":
        raise config_error("test", "true", f"{lacking}; use test=auto, which then tests nothing")
    if (cfg.optimized_metric or "").startswith("test"):
        raise config_error("optimized_metric", cfg.optimized_metric, f"needs a test, and {lacking}")
    log.warning(f"Nothing will be tested: {lacking}.")
    cfg.test = False


def _build_strategy(cfg: DictConfig, plan: Plan) -> Any:
    return construct("trainer.strategy", _plain(cfg, "trainer.strategy"), {"world_size": plan.world_size})


def build_trainer(cfg: DictConfig, plan: Plan, step: int | None = None, strategy: Any = None) -> Trainer:
    """Lightning's Trainer on the plan's devices. One process is not wrapped in DDP. `step` is that of its own
    checkpoint, from which it goes on."""
    known = Trainer.__init__.__annotations__  # null elsewhere is the option of an entry of `events` that is null, too
    settings = {name: value for name, value in _plain(cfg, "trainer").items() if name in known or value is not None}
    del settings["sync_batchnorm"]  # it is the model's; see build
    settings["num_sanity_val_steps"] = settings.get("num_sanity_val_steps") or 0  # the guard of plain Lightning sets one
    io = construct("trainer.checkpoint_io", settings.pop("checkpoint_io"))
    del settings["strategy"]
    strategy = strategy or _build_strategy(cfg, plan)
    settings |= {"accelerator": plan.accelerator, "devices": list(plan.device_ids) if plan.device_ids else plan.devices}
    settings["num_nodes"] = plan.num_nodes
    plugins: list[Any] = [launcher().lightning_environment(), io]
    if str(settings.get("precision")).startswith("64"):  # by its name, Lightning refuses it to ModelParallelStrategy
        plugins.append(DoublePrecision())
        del settings["precision"]
    guards = _instances(cfg, "guards", lambda target: {"cfg": cfg} if "cfg" in arguments_of(target).own else {})
    callbacks: list[Callback] = [*guards, *_instances(cfg, "callbacks")]
    callbacks.sort(key=lambda callback: isinstance(callback, LastCheckpoint))  # after the best one, so that it knows it
    if not settings["enable_progress_bar"]:
        callbacks = [callback for callback in callbacks if not isinstance(callback, ProgressBar)]
    objects = {
        "strategy": strategy if plan.world_size > 1 or strategy.has_same_bits else "auto",
        "plugins": plugins,
        "callbacks": callbacks,
        "logger": _loggers(cfg, step) or False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "default_root_dir": cfg.run_dir,
    }
    trainer = construct("trainer", settings, objects)
    savers = [SavesFirst(callback) for callback in callbacks if isinstance(callback, LastCheckpoint)]
    trainer.callbacks = [*savers, *trainer.callbacks]  # pyright: ignore[reportAttributeAccessIssue]
    return trainer


def _step_to_continue_from(cfg: DictConfig, plan: Plan, model: nn.Module, checkpoint: Path | None) -> int | None:
    """Returns the step from which loggers go on after the run's own checkpoint. Raises ConfigError where training can't go on
    from it as configured."""
    if checkpoint is None or not checkpoint.is_relative_to(cfg.run_dir):
        return None
    from lockstep.runs.continuation import check_length, check_rate

    content = read_for(model, "resume", checkpoint)
    epoch, average = content.get("epoch", 0), content.get("callbacks", {}).get("StochasticWeightAveraging", {})
    is_added = 0 <= average.get("latest_update_epoch", -1) < epoch - 1  # by that callback, for BatchNorm, behind the last epoch
    check_length(cfg, epoch - 1 if is_added else epoch, checkpoint)
    check_rate(cfg, plan, content, checkpoint)
    logged = read_logged_step(content)  # by hand an optimizer steps less often, or more
    return max(content.get("global_step", 0), logged) if getattr(model, "automatic_optimization", True) else logged


def _instances(cfg: DictConfig, group: str, given: Callable[[Any], dict[str, Any]] = lambda _: {}) -> list[Any]:
    """Builds the objects of a group of named entries, each with what is `given` for its target; an entry may be null."""
    entries = {f"{group}.{name}": entry for name, entry in (_plain(cfg, group) or {}).items() if entry is not None}
    for key, entry in entries.items():
        arguments_in(key, entry)  # refuses callbacks.NAME=true, say
    return [construct(key, entry, given(resolve(key, entry["_target_"]))) for key, entry in entries.items()]


def _loggers(cfg: DictConfig, step: int | None) -> list[Any]:
    """The same ones of a run that is resumed, less what they have logged after its checkpoint, which is of `step`."""
    can_purge = () if step is None else (loggers.TensorBoardLogger, CSVLogger)

    def given(target: Any) -> dict[str, Any]:
        return {"purge_step": step} if isinstance(target, type) and issubclass(target, can_purge) else {}

    return _instances(cfg, "logger", given)


def _plain(cfg: DictConfig, key: str) -> Any:
    """A part of the config as plain containers; null where there is none."""
    node = OmegaConf.select(cfg, key)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
