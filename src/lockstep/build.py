"""Build a run's datamodule, model and trainer from its config."""

from pathlib import Path
from typing import Any

from lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, Checkpoint, LambdaCallback, ProgressBar
from lightning.pytorch.plugins.precision import DoublePrecision
from omegaconf import DictConfig, OmegaConf

from lockstep.callbacks.checkpoints import LastCheckpoint, SavesFirst
from lockstep.callbacks.every_run import FirstValidation, Resumption, SteppedRate, TrainedParameters
from lockstep.callbacks.randomness import draw_alike_in_setup
from lockstep.config.construct import construct
from lockstep.config.plan import Plan
from lockstep.datamodules.base import DataSpec
from lockstep.datamodules.from_config import build_datamodule, check_data
from lockstep.launchers.environment import launcher
from lockstep.models.from_config import build_model
from lockstep.trainer.lightning_internals import disable_sigterm_handling, drop_commentary
from lockstep.trainer.loggers import build_loggers


def build(
    cfg: DictConfig, plan: Plan, checkpoint: Path | None = None
) -> tuple[LightningDataModule | None, LightningModule, Trainer]:
    """Return the datamodule, the model and the trainer. Initial weights depend on the seed, not on data, rank or world size.
    `checkpoint` is the one that training will start from: the run's own, or another run's for a fork."""
    drop_commentary()
    trainer = build_trainer(cfg, plan, checkpoint)  # first: its strategy may set the number of threads, which affects bits
    datamodule = build_datamodule(_plain(cfg, "datamodule"), plan)
    seed_everything(cfg.seed, workers=True, verbose=False)
    spec = getattr(datamodule, "spec", None)
    model = build_model(_plain(cfg, "model"), spec if isinstance(spec, DataSpec) else None, plan.lr)
    check_data(cfg, model, datamodule)
    draw_alike_in_setup(model if datamodule is None else datamodule)
    # now: Lightning converts after loading a checkpoint and copying the weights to be averaged, which would round them
    trainer.precision_plugin.convert_module(model)
    if cfg.init_from is not None:
        from lockstep.models.from_checkpoint import load_weights

        load_weights(model, "init_from", Path(cfg.init_from), OmegaConf.select(cfg, "init_without"))
    return datamodule, model, trainer


def build_trainer(cfg: DictConfig, plan: Plan, checkpoint: Path | None = None) -> Trainer:
    """Return Lightning's Trainer on the plan's devices; one process is not wrapped in DDP."""
    settings = _plain(cfg, "trainer") | {"num_nodes": plan.num_nodes, "accelerator": plan.accelerator}
    settings["devices"] = list(plan.device_ids) if plan.device_ids else plan.devices
    settings["num_sanity_val_steps"] = settings.get("num_sanity_val_steps") or 0  # the guard of plain Lightning sets one
    strategy = construct("trainer.strategy", settings.pop("strategy"), {"world_size": plan.world_size})
    plugins: list[Any] = [launcher().lightning_environment(), construct("trainer.checkpoint_io", settings.pop("checkpoint_io"))]
    if str(settings.get("precision")).startswith("64"):  # Lightning refuses this name for ModelParallelStrategy
        plugins.append(DoublePrecision())
        del settings["precision"]
    is_own = checkpoint is not None and checkpoint.is_relative_to(cfg.run_dir)
    callbacks = _callbacks(cfg, plan, None if is_own else checkpoint)
    objects = {
        "strategy": strategy if plan.world_size > 1 or strategy.has_same_bits else "auto",
        "plugins": plugins,
        "callbacks": callbacks,
        "logger": build_loggers(_entries(cfg, "logger"), cfg, checkpoint if is_own else None) or False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "default_root_dir": cfg.run_dir,
    }
    settings.pop("sync_batchnorm")
    trainer = construct("trainer", settings, objects)
    disable_sigterm_handling(trainer)
    return trainer


def _callbacks(cfg: DictConfig, plan: Plan, origin: Path | None) -> list[Callback]:
    """Return the callbacks in the order in which they are called. `origin`: the checkpoint from which a fork starts."""
    guards = [construct(key, entry, {"cfg": cfg}) for key, entry in _entries(cfg, "guards").items()]
    own: list[Callback] = [*guards, *(construct(key, entry) for key, entry in _entries(cfg, "callbacks").items())]
    own = [one for one in own if cfg.trainer.enable_progress_bar or not isinstance(one, ProgressBar)]
    savers = [one for one in own if isinstance(one, LastCheckpoint)]
    first: list[Callback] = [TrainedParameters(), SteppedRate(), *map(SavesFirst, savers)]
    last: list[Callback] = [*savers, FirstValidation()]  # which save the state of the best checkpoint's callback
    if cfg.trainer.sync_batchnorm and plan.world_size > 1:
        from lockstep.trainer.batchnorm import synchronise_batchnorm

        hooks = dict.fromkeys(("setup", "on_fit_start"), lambda _, model, **__: synchronise_batchnorm(model))
        first.insert(0, LambdaCallback(**hooks))  # the second for layers that its hooks have made
    if cfg.fork is not None and origin is not None:
        from lockstep.callbacks.forked import forked_from

        last.append(forked_from(cfg, origin))
    return [*first, *(one for one in own if one not in savers), *last, Resumption()]


def _entries(cfg: DictConfig, group: str) -> dict[str, Any]:
    """Return the entries of a group by their keys, without those that are null."""
    return {f"{group}.{name}": entry for name, entry in (_plain(cfg, group) or {}).items() if entry is not None}


def _plain(cfg: DictConfig, key: str) -> Any:
    """Return a part of the config as plain containers, or None if there is none."""
    node = OmegaConf.select(cfg, key)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
