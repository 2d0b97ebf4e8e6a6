"""From a composed config to the three objects of a run, and from a checkpoint back to a model."""

import logging
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import loggers
from lightning.pytorch.callbacks import Callback, Checkpoint, ProgressBar
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf
from torch import nn

from lockstep.callbacks import LastCheckpoint, MonitoredMetrics, PlainLightning, Ranks, SteppedRate
from lockstep.checkpointing import read_checkpoint
from lockstep.config.arguments import Arguments
from lockstep.config.construct import Factory, construct
from lockstep.config.metrics import monitored
from lockstep.config.overrides import key_of
from lockstep.config.plan import Plan
from lockstep.config.read import check_targets, trust_of
from lockstep.config.targets import Trust
from lockstep.datamodules.base import DataModule
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import this_rank
from lockstep.models.from_config import build_model, is_task, plain_spec
from lockstep.models.task import Task
from lockstep.runs.continuation import check_continuation, trained_with
from lockstep.trainer.batchnorm import synchronise_batchnorm
from lockstep.trainer.epoch_loop import shorten_steps
from lockstep.trainer.lightning_internals import disable_sigterm_handling
from lockstep.trainer.loggers import CSVLogger

# Warnings about what this package does on purpose.
_OF_RUNS = (
    "Checkpoint directory .* exists and is not empty",  # that is how a run is continued
    "The `srun` command is available on your system but is not used",  # a job of one task is a plain machine to us
    r"`isinstance\(treespec, LeafSpec\)`",  # between Lightning and torch
)
# Warnings of Lightning that are wrong about the loaders of a DataModule and the metrics of a Task. Others get them all.
_OF_TASKS = (
    "Total length of `list` across ranks is zero",  # a split that is not there is an empty list of loaders
    "The '.*_dataloader' does not have many workers",  # data in memory needs none
    r"It is recommended to use `self\.log",  # a SampleMean is summed over the ranks before it is logged
    "The number of training batches",  # logging less often than once an epoch is a choice
)

log = logging.getLogger(__name__)
_WITHOUT_A_SPEC = (
    "has no `spec`, the shape of its inputs and the number of outputs, which a lockstep.models.Task needs; "
    "accepted is a lockstep.datamodules.DataModule, or model._target_ as a LightningModule of your own"
)
_NOT_A_TASK_S = (
    "does not say what it is built of; accepted is a checkpoint of a lockstep.models.Task. "
    "That of another LightningModule is read by its load_from_checkpoint"
)


def build(cfg: DictConfig, plan: Plan) -> tuple[LightningDataModule | None, LightningModule, Trainer]:
    """The three parts of a run. The weights drawn depend on the seed alone: not on the data, the rank, or the world."""
    _quieten_lightning()
    if (trust := trust_of(cfg)) is not None:
        check_targets(cfg, trust)
    datamodule = _build_datamodule(cfg)
    seed_everything(cfg.seed, workers=True, verbose=False)
    model_config = {"model": _plain(cfg, "model"), "spec": plain_spec(datamodule)}
    if model_config["spec"] is None and is_task(model_config["model"], trust):
        raise _lacks_spec(cfg)
    model = build_model(model_config, plan.lr, trust)
    _check_loaders(model, datamodule)
    if cfg.test:
        _check_test(model, datamodule)
    step = None if cfg.ckpt_path is None else _step_of_continued(cfg, plan, model)
    trainer = build_trainer(cfg, plan, step)
    if not isinstance(model, Task):
        _look_at_metrics(cfg, trainer)
    if isinstance(model, Task) and isinstance(datamodule, DataModule):
        _ignore_warnings(_OF_TASKS)
    else:
        trainer.callbacks.append(PlainLightning(cfg.seed))  # pyright: ignore[reportAttributeAccessIssue]
    trainer.callbacks.append(SteppedRate(trained_with(plan)))  # pyright: ignore[reportAttributeAccessIssue]
    # at once: Lightning converts after it has loaded a checkpoint and copied the weights to be averaged, which rounds them
    trainer.precision_plugin.convert_module(model)
    if cfg.init_from is not None:
        load_weights(model, "init_from", Path(cfg.init_from), OmegaConf.select(cfg, "init_without"))
    if cfg.trainer.sync_batchnorm and plan.world_size > 1:
        synchronise_batchnorm(model)
    return datamodule, model, trainer


def _look_at_metrics(cfg: DictConfig, trainer: Any) -> None:
    """A Task says in the config what it logs; of another module it is seen in a batch of validation before training."""
    if cfg.trainer.num_sanity_val_steps is None:
        trainer.num_sanity_val_steps = 1
    trainer.callbacks.append(MonitoredMetrics(dict(monitored(cfg))))


def _quieten_lightning() -> None:
    """Its running commentary; importing it has set the level. Warnings stay, but for those that are wrong about us."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    _ignore_warnings(_OF_RUNS)


def _build_datamodule(cfg: DictConfig) -> LightningDataModule | None:
    if cfg.datamodule is None:
        return None
    datamodule = construct("datamodule", _plain(cfg, "datamodule"))
    if not isinstance(datamodule, LightningDataModule):
        raise config_error("datamodule._target_", cfg.datamodule._target_, "accepted is a LightningDataModule")
    return datamodule


def _lacks_spec(cfg: DictConfig) -> ConfigError:
    if cfg.datamodule is None:
        return config_error("datamodule", "null", "a lockstep.models.Task has no data of its own; accepted is a datamodule")
    return config_error("datamodule._target_", cfg.datamodule._target_, _WITHOUT_A_SPEC)


def _ignore_warnings(messages: Sequence[str]) -> None:
    for message in messages:
        warnings.filterwarnings("ignore", message=message)


def _check_loaders(model: LightningModule, datamodule: LightningDataModule | None) -> None:
    """Raises ConfigError where nobody has training data, or where the module's own would be passed over for a default."""
    has_own, name = is_overridden("train_dataloader", model), type(model).__name__
    if datamodule is None and not has_own:
        raise config_error("datamodule", "null", f"{name} has no train_dataloader of its own; accepted is a datamodule")
    if datamodule is None or not has_own or not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    if not {"datamodule", "experiment"} & set(map(key_of, hydra.overrides.task)):
        default = hydra.runtime.choices["datamodule"]
        accepted = f"accepted is datamodule=null for these, or datamodule={default} for that data"
        raise config_error("datamodule", default, f"is the default, and {name} has loaders of its own; {accepted}")


def _check_test(model: LightningModule, datamodule: LightningDataModule | None) -> None:
    """Before training, which would end with it."""
    if not getattr(datamodule, "has_test", True):
        raise config_error("test", "true", "this data has no test split; accepted is test=false")
    for part, hook in ((model, "test_step"), (datamodule or model, "test_dataloader")):
        if not is_overridden(hook, part):
            raise config_error("test", "true", f"{type(part).__name__} has no {hook}; accepted is test=false")


def build_trainer(cfg: DictConfig, plan: Plan, step: int | None = None) -> Trainer:
    """Lightning's Trainer on the plan's devices. One process is not wrapped in DDP. `step` is that of cfg.ckpt_path."""
    settings = _plain(cfg, "trainer")
    del settings["sync_batchnorm"]  # it is the model's; see build
    if settings.get("num_sanity_val_steps") is None:  # see build, too
        settings["num_sanity_val_steps"] = 0
    io = construct("trainer.checkpoint_io", settings.pop("checkpoint_io"))
    strategy = construct("trainer.strategy", settings.pop("strategy"), {"world_size": plan.world_size})
    settings |= {"accelerator": plan.accelerator, "devices": list(plan.device_ids) if plan.device_ids else plan.devices}
    settings["num_nodes"] = plan.num_nodes
    plugins: list[Any] = [_cluster_environment(), io]
    if str(settings.get("precision")).startswith("64"):  # by its name, Lightning refuses it to ModelParallelStrategy
        plugins.append(DoublePrecision())
        del settings["precision"]
    callbacks: list[Callback] = [*_instances(cfg, "guards"), *_instances(cfg, "callbacks")]
    callbacks.sort(key=lambda callback: isinstance(callback, LastCheckpoint))  # after the best one, so that it knows it
    if not settings["enable_progress_bar"]:
        callbacks = [callback for callback in callbacks if not isinstance(callback, ProgressBar)]
    objects = {
        "strategy": strategy if plan.world_size > 1 else "auto",
        "plugins": plugins,
        "callbacks": callbacks,
        "logger": _loggers(cfg, step) or False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "default_root_dir": cfg.run_dir,
    }
    trainer = construct("trainer", settings, objects)
    trainer.callbacks.append(Ranks())  # pyright: ignore[reportAttributeAccessIssue]
    shorten_steps(trainer)
    disable_sigterm_handling(trainer)
    return trainer


def load_model(checkpoint: str | Path, allow: Sequence[str] = ()) -> Any:
    """A trained model from a checkpoint, on the CPU and in evaluation mode, without Hydra's command line.

    A checkpoint says what it is built of. It can name classes that this package, torch, torchvision, torchmetrics and the project
    have for that, and what is defined in the modules of `allow`: whatever else it names is refused, not run.
    """
    path = Path(checkpoint)
    model_config = read_checkpoint("checkpoint", path).get("hyper_parameters")
    if not isinstance(model_config, dict) or not isinstance(model_config.get("model"), dict) or "spec" not in model_config:
        raise config_error("checkpoint", path, _NOT_A_TASK_S)
    try:
        model = build_model(model_config, trust=Trust.of_checkpoint(path, allow))
    except ConfigError as error:
        raise config_error("checkpoint", path, str(error)) from error
    except Exception as error:  # whatever a constructor says to nonsense
        reason = f"no model can be built of what it says ({type(error).__name__}: {error})"
        raise config_error("checkpoint", path, reason) from error
    load_weights(model, "checkpoint", path)
    return model.eval()


def load_weights(model: nn.Module, key: str, path: Path, without: str | None = None) -> None:
    """All tensors but those in whose names `without`, a regular expression, is found: these stay as they are.

    Raises ConfigError, naming the config key, for a checkpoint of another model.
    """
    theirs, names = _fitting(model, key, path, without)["state_dict"], model.state_dict().keys()
    taken = {name: tensor for name, tensor in theirs.items() if not _is_left_out(name, without)}
    model.load_state_dict(taken, strict=without is None)
    if without is None:
        return
    drawn, unused = sorted(names - taken.keys()), sorted(theirs.keys() - taken.keys())
    if not drawn and not unused:
        raise config_error("init_without", without, f"is found in no name; accepted is part of one such as {next(iter(theirs))}")
    lists = {"taken": sorted(taken), "not taken": unused, "as initialised": drawn}
    said = "; ".join(f"{what}: {', '.join(names) or 'nothing'}" for what, names in lists.items())
    log.info(f"{key}={path}: {said}")


def _is_left_out(name: str, without: str | None) -> bool:
    return without is not None and re.search(without, name) is not None


def _step_of_continued(cfg: DictConfig, plan: Plan, model: nn.Module) -> int | None:
    """The optimizer step of cfg.ckpt_path. Raises ConfigError where training can't go on from it as configured."""
    checkpoint = _fitting(model, "ckpt_path", Path(cfg.ckpt_path))
    check_continuation(cfg, plan, checkpoint)
    return checkpoint.get("global_step")


def _fitting(model: nn.Module, key: str, path: Path, without: str | None = None) -> dict[str, Any]:
    """The checkpoint, whose weights are those of such a model, `without` those that are left out."""
    checkpoint = read_checkpoint(key, path)
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise config_error(key, path, "not a Lightning checkpoint: it has no state_dict")
    theirs, ours = checkpoint["state_dict"], model.state_dict()
    for name in sorted(name for name in theirs.keys() | ours.keys() if not _is_left_out(name, without)):
        if name not in theirs or name not in ours:
            raise config_error(key, path, f"of another model: {name} is only in the {'model' if name in ours else 'checkpoint'}")
        if theirs[name].shape != ours[name].shape:
            shapes = f"{tuple(theirs[name].shape)} there, {tuple(ours[name].shape)} in the model"
            raise config_error(key, path, f"of another model: {name} is {shapes}")
    return checkpoint


def _instances(cfg: DictConfig, group: str, given: Callable[[Factory], dict[str, Any]] = lambda _: {}) -> list[Any]:
    """The objects of a group of named entries; an entry that is null has been taken out."""
    entries = _plain(cfg, group) or {}
    factories = [Factory(f"{group}.{name}", entry) for name, entry in entries.items() if entry is not None]
    return [factory.construct(given(factory)) for factory in factories]


def _loggers(cfg: DictConfig, step: int | None) -> list[Any]:
    """Of a run that is continued the same ones, less what they have logged after its checkpoint, which is of `step`."""
    is_continued = step is not None and Path(cfg.ckpt_path).is_relative_to(cfg.run_dir)
    can_purge = (loggers.TensorBoardLogger, CSVLogger) if is_continued else ()

    def given(factory: Factory) -> dict[str, Any]:
        if _is_one(factory.callee, (loggers.TensorBoardLogger,)):  # which passes the rest on only when it first writes
            from torch.utils.tensorboard import SummaryWriter

            rest = factory.keywords.keys() - factory.arguments.own
            Arguments(SummaryWriter).check(factory.key, {name: factory.keywords[name] for name in rest})
        return {"purge_step": step} if _is_one(factory.callee, can_purge) else {}

    return _instances(cfg, "logger", given)


def _is_one(callee: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(callee, type) and issubclass(callee, kinds)


def _plain(cfg: DictConfig, key: str) -> Any:
    """A part of the config as plain containers; null where there is none."""
    node = OmegaConf.select(cfg, key)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _cluster_environment() -> ClusterEnvironment:
    """Who has started the ranks, said to Lightning: inside a SLURM job of one task it would guess wrong."""
    rank = this_rank()
    if rank is not None and rank.started_by == "slurm":
        return SLURMEnvironment(auto_requeue=False)
    return TorchElasticEnvironment() if rank is not None and rank.started_by == "torchrun" else LightningEnvironment()
