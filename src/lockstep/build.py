"""Build a run's datamodule, model and trainer from its config."""

import logging
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch import loggers
from lightning.pytorch.callbacks import Callback, Checkpoint, LambdaCallback, ProgressBar
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf

from lockstep.callbacks import LastCheckpoint, SteppedRate
from lockstep.callbacks.checkpoints import SavesFirst
from lockstep.callbacks.every_run import FirstValidation, LightningCallbacks, SchedulesAsBefore, TrainedParameters
from lockstep.callbacks.randomness import draw_alike_in_setup
from lockstep.checkpointing import read_checkpoint
from lockstep.config.arguments import shown
from lockstep.config.construct import construct, resolve
from lockstep.config.overrides import override_key
from lockstep.config.plan import Plan
from lockstep.errors import config_error
from lockstep.launchers.environment import launcher
from lockstep.models.from_config import build_model, plain_spec
from lockstep.runs.results import lacking_for_test
from lockstep.trainer.lightning_internals import disable_sigterm_handling, drop_commentary, read_logged_step
from lockstep.trainer.loggers import CSVLogger

log = logging.getLogger(__name__)


def build(
    cfg: DictConfig, plan: Plan, checkpoint: Path | None = None
) -> tuple[LightningDataModule | None, LightningModule, Trainer]:
    """Return the datamodule, the model and the trainer. Initial weights depend on the seed, not on data, rank or world size.

    `checkpoint` is the one that training will start from: the run's own, or another run's for a fork."""
    drop_commentary()
    strategy = _build_strategy(cfg, plan)  # first: it may set the number of threads, which affects the bits of initial weights
    datamodule = _build_datamodule(cfg, plan)
    seed_everything(cfg.seed, workers=True, verbose=False)
    model = build_model({"model": _plain(cfg, "model"), "spec": plain_spec(datamodule)}, plan.lr)
    check_training_data(model, datamodule is not None)
    draw_alike_in_setup(model if datamodule is None else datamodule)
    if cfg.test and (lacking := lacking_for_test(model, datamodule)) is not None:
        if cfg.test is True or (cfg.optimized_metric or "").startswith("test"):  # training would end with that
            raise config_error("test", shown(cfg.test), f"{lacking}; use test=auto, and no metric of a test")
        log.warning(f"Nothing will be tested: {lacking}.")
        cfg.test = False
    step = None
    if checkpoint is not None and checkpoint.is_relative_to(cfg.run_dir):
        step = _step_to_continue_from(cfg, plan, checkpoint)
    trainer: Any = build_trainer(cfg, plan, step, strategy)
    stepped = SteppedRate({"lr": plan.lr})
    # schedules first: Lightning's weight averaging removes them when it resumes; the others unfreeze at the start of an epoch
    trainer.callbacks = [SchedulesAsBefore(), TrainedParameters(), stepped, *trainer.callbacks, FirstValidation()]
    if cfg.fork is not None and checkpoint is not None and step is None:
        from lockstep.callbacks.forked import forked_from

        trainer.callbacks.append(forked_from(cfg, checkpoint))
    trainer.callbacks.append(LightningCallbacks())
    disable_sigterm_handling(trainer)
    # now: Lightning converts after loading a checkpoint and copying the weights to be averaged, which would round them
    trainer.precision_plugin.convert_module(model)
    if cfg.init_from is not None:
        from lockstep.models.from_checkpoint import load_weights

        load_weights(model, "init_from", Path(cfg.init_from), OmegaConf.select(cfg, "init_without"))
    if cfg.trainer.sync_batchnorm and plan.world_size > 1:
        from lockstep.trainer.batchnorm import synchronise_batchnorm

        synchronise_batchnorm(model)
        later = LambdaCallback(on_fit_start=lambda _, module: synchronise_batchnorm(module))  # layers made by its hooks
        trainer.callbacks.insert(0, later)
    return datamodule, model, trainer


def _step_to_continue_from(cfg: DictConfig, plan: Plan, checkpoint: Path) -> int:
    """Return the step at which loggers resume after the run's own checkpoint. Raise ConfigError, before they change their files,
    if training can't be resumed from it."""
    from lockstep.runs.resume import check_length, check_rate

    content = read_checkpoint("resume", checkpoint, whole=())
    epoch, average = content.get("epoch", 0), content.get("callbacks", {}).get("StochasticWeightAveraging", {})
    is_added = 0 <= average.get("latest_update_epoch", -1) < epoch - 1  # an epoch that the callback appends for BatchNorm
    check_length(cfg, epoch - 1 if is_added else epoch, checkpoint)
    check_rate(cfg, plan, content, checkpoint)
    return read_logged_step(content)


def _build_strategy(cfg: DictConfig, plan: Plan) -> Any:
    return construct("trainer.strategy", _plain(cfg, "trainer.strategy"), {"world_size": plan.world_size})


def _build_datamodule(cfg: DictConfig, plan: Plan) -> LightningDataModule | None:
    if cfg.datamodule is None:
        return None
    settings = _plain(cfg, "datamodule")
    given = {}
    if "batch_size" in settings:  # follows from the global one, which a user's class need not accept
        own, total = settings["batch_size"], settings.pop("global_batch_size", None)
        settings["batch_size"] = plan.batch_size
        given = {"global_batch_size": total} if own is None and total is not None else {}
    datamodule = construct("datamodule", settings, given)
    if not isinstance(datamodule, LightningDataModule):
        accepted = "use a LightningDataModule of lightning.pytorch, not of pytorch_lightning: import lightning.pytorch as pl"
        raise config_error("datamodule._target_", cfg.datamodule._target_, accepted)
    return datamodule


def build_trainer(cfg: DictConfig, plan: Plan, step: int | None = None, strategy: Any = None) -> Trainer:
    """Return Lightning's Trainer on the plan's devices; one process is not wrapped in DDP. `step` is that of the run's own
    checkpoint if it is resumed."""
    settings = _plain(cfg, "trainer") | {"num_nodes": plan.num_nodes, "accelerator": plan.accelerator}
    for name in ("sync_batchnorm", "strategy", "exact"):  # no arguments of Lightning's Trainer here
        settings.pop(name, None)
    settings["devices"] = list(plan.device_ids) if plan.device_ids else plan.devices
    settings["num_sanity_val_steps"] = settings.get("num_sanity_val_steps") or 0  # the guard of plain Lightning sets one
    strategy = strategy or _build_strategy(cfg, plan)
    plugins: list[Any] = [launcher().lightning_environment(), construct("trainer.checkpoint_io", settings.pop("checkpoint_io"))]
    if str(settings.get("precision")).startswith("64"):  # Lightning refuses this name for ModelParallelStrategy
        plugins.append(DoublePrecision())
        del settings["precision"]
    callbacks: list[Callback] = [*_instances(cfg, "guards", {"cfg": cfg}), *_instances(cfg, "callbacks")]
    callbacks.sort(key=lambda callback: isinstance(callback, LastCheckpoint))  # last, so that it saves the best one's state
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
    trainer.callbacks = [*savers, *trainer.callbacks]
    return trainer


def _entries(cfg: DictConfig, group: str) -> dict[str, Any]:
    """Return the entries of a group by their keys, without those that are null."""
    return {f"{group}.{name}": entry for name, entry in (_plain(cfg, group) or {}).items() if entry is not None}


def _instances(cfg: DictConfig, group: str, given: dict[str, Any] | None = None) -> list[Any]:
    return [construct(key, entry, given) for key, entry in _entries(cfg, group).items()]


def _loggers(cfg: DictConfig, step: int | None) -> list[Any]:
    """Return the loggers. In a run resumed from `step`, they remove what they have logged after it."""
    made = []
    for key, entry in _entries(cfg, "logger").items():
        can_purge = False
        if step is not None and isinstance(target := resolve(key, entry["_target_"]), type):
            can_purge = issubclass(target, loggers.TensorBoardLogger | CSVLogger)
        made.append(construct(key, entry, {"purge_step": step} if can_purge else {}))
    return made


def _plain(cfg: DictConfig, key: str) -> Any:
    """Return a part of the config as plain containers, or None if there is none."""
    node = OmegaConf.select(cfg, key)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def check_training_data(model: LightningModule, has_datamodule: bool) -> None:
    """Raise ConfigError if there is no training data, or if the default data would replace the module's own."""
    has_own, name = is_overridden("train_dataloader", model), type(model).__name__
    if not has_datamodule and not has_own:
        raise config_error("datamodule", "null", f"{name} has no train_dataloader of its own; use a datamodule")
    if not has_datamodule or not has_own or not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    option, given = hydra.runtime.choices["datamodule"], set(map(override_key, hydra.overrides.task))
    if "experiment" in given and "datamodule" not in given:
        log.warning(f"Trained on datamodule={option}, not on the loaders of {name}; with datamodule=null on these")
    elif "datamodule" not in given:
        accepted = f"use datamodule=null for these, or datamodule={option} for that data"
        raise config_error("datamodule", option, f"is the default, and {name} has loaders of its own; {accepted}")
