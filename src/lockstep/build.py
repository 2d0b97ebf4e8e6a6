"""From a composed config to objects: the only caller of Hydra's instantiate."""

import inspect
import logging
import warnings
from pathlib import Path
from typing import Any

from hydra.utils import get_object, instantiate
from lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback, Checkpoint, ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from omegaconf import DictConfig, OmegaConf
from torch import nn

from lockstep.callbacks import LastCheckpoint
from lockstep.checkpointing import read_checkpoint
from lockstep.config.plan import Plan
from lockstep.datamodules.base import DataSpec
from lockstep.errors import config_error
from lockstep.launchers.environment import this_rank
from lockstep.trainer.batchnorm import SyncBatchNorm
from lockstep.trainer.lightning_internals import disable_sigterm_handling
from lockstep.trainer.loggers import CSVLogger

# Warnings of Lightning that are wrong about our loaders and metrics.
_NOT_OURS = (
    "Total length of `list` across ranks is zero",  # a split that is not there is an empty list of loaders
    "The '.*_dataloader' does not have many workers",  # data in memory needs none
    "Checkpoint directory .* exists and is not empty",  # that is how a run is continued
    "The `srun` command is available on your system but is not used",  # a job of one task is a plain machine to us
    r"It is recommended to use `self\.log",  # a SampleMean is summed over the ranks before it is logged
    "The number of training batches",  # logging less often than once an epoch is a choice
    r"`isinstance\(treespec, LeafSpec\)`",  # between Lightning and torch
)


def build(cfg: DictConfig, plan: Plan) -> tuple[LightningDataModule, LightningModule, Trainer]:
    """The three parts of a run. The weights drawn depend on the seed alone: not on the data, the rank, or the world."""
    _quieten_lightning()
    datamodule = instantiate(cfg.datamodule, _convert_="all")
    if cfg.test and not getattr(datamodule, "has_test", True):
        raise config_error("test", "true", "this data has no test split; accepted is test=false")
    seed_everything(cfg.seed, workers=True, verbose=False)
    model_config = {"model": OmegaConf.to_container(cfg.model, resolve=True), "spec": _plain_spec(datamodule.spec)}
    model = build_model(model_config, lr=plan.lr)
    if cfg.init_from is not None:
        load_weights(model, "init_from", Path(cfg.init_from))
    step = None if cfg.ckpt_path is None else _fitting(model, "ckpt_path", Path(cfg.ckpt_path)).get("global_step")
    return datamodule, model, build_trainer(cfg, plan, step)


def _quieten_lightning() -> None:
    """Its running commentary; importing it has set the level. Warnings stay, but for those that are wrong about us."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in _NOT_OURS:
        warnings.filterwarnings("ignore", message=message)


def build_model(model_config: dict[str, Any], lr: float | None = None) -> LightningModule:
    """From plain containers: {"model": a composed model group, "spec": the fields of a DataSpec}."""
    spec = _spec(model_config["spec"])
    parts: Any = OmegaConf.create(model_config["model"])
    if lr is not None:
        parts.optimizer.lr = lr
    for metric in (parts.get("torchmetrics") or {}).values():
        if "num_classes" in inspect.signature(get_object(metric["_target_"])).parameters:
            metric.setdefault("num_classes", spec.num_outputs)
    net = _construct(parts.pop("net"), {"input_shape": spec.input_shape, "num_outputs": spec.num_outputs})
    return _construct(parts, {"net": net, "spec": spec, "model_config": model_config})


def build_trainer(cfg: DictConfig, plan: Plan, step: int | None = None) -> Trainer:
    """Lightning's Trainer on the plan's devices. One process is not wrapped in DDP. `step` is that of cfg.ckpt_path."""
    settings: Any = OmegaConf.create(OmegaConf.to_container(cfg.trainer, resolve=True))
    strategy, sync_batchnorm, io = (settings.pop(name) for name in ("strategy", "sync_batchnorm", "checkpoint_io"))
    settings.accelerator = plan.accelerator
    settings.devices = list(plan.device_ids) if plan.device_ids else plan.devices
    plugins: list[Any] = [_cluster_environment(), _construct(io, {})]
    if sync_batchnorm and plan.world_size > 1:
        plugins.append(SyncBatchNorm(plan.accelerator))
    callbacks: list[Callback] = [*_instances(OmegaConf.select(cfg, "guards")), *_instances(OmegaConf.select(cfg, "callbacks"))]
    callbacks.sort(key=lambda callback: isinstance(callback, LastCheckpoint))  # after the best one, so that it knows it
    if not settings.enable_progress_bar:
        callbacks = [callback for callback in callbacks if not isinstance(callback, ProgressBar)]
    objects = {
        "strategy": _construct(strategy, {"world_size": plan.world_size}) if plan.world_size > 1 else "auto",
        "plugins": plugins,
        "callbacks": callbacks,
        "logger": _loggers(cfg, step) or False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "default_root_dir": cfg.run_dir,
    }
    trainer = _construct(settings, objects)
    disable_sigterm_handling(trainer)
    return trainer


def load_model(checkpoint: str | Path) -> Any:
    """A trained model from a checkpoint, on the CPU and in evaluation mode, without Hydra's command line."""
    path = Path(checkpoint)
    model = build_model(read_checkpoint("checkpoint", path)["hyper_parameters"])
    load_weights(model, "checkpoint", path)
    return model.eval()


def load_weights(model: nn.Module, key: str, path: Path) -> None:
    """Raises ConfigError, naming the config key, for a checkpoint of another model."""
    model.load_state_dict(_fitting(model, key, path)["state_dict"])


def _fitting(model: nn.Module, key: str, path: Path) -> dict[str, Any]:
    """The checkpoint, whose weights are those of such a model."""
    checkpoint = read_checkpoint(key, path)
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise config_error(key, path, "not a Lightning checkpoint: it has no state_dict")
    theirs, ours = checkpoint["state_dict"], model.state_dict()
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in theirs or name not in ours:
            raise config_error(key, path, f"of another model: {name} is only in the {'model' if name in ours else 'checkpoint'}")
        if theirs[name].shape != ours[name].shape:
            shapes = f"{tuple(theirs[name].shape)} there, {tuple(ours[name].shape)} in the model"
            raise config_error(key, path, f"of another model: {name} is {shapes}")
    return checkpoint


def _construct(node: Any, objects: dict[str, Any]) -> Any:
    """Calls a node's _target_ with the node's own values and those of `objects` that it takes and the node lacks."""
    target = get_object(node.pop("_target_"))
    parameters = inspect.signature(target).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    values: Any = instantiate(node, _convert_="all")
    return target(**{name: value for name, value in objects.items() if takes_all or name in parameters}, **values)


def _instances(group: DictConfig | None) -> list[Any]:
    """The objects of a group of named entries; an entry that is null has been taken out."""
    return [instantiate(entry, _convert_="all") for entry in (group or {}).values() if entry is not None]


def _loggers(cfg: DictConfig, step: int | None) -> list[Any]:
    """Of a run that is continued the same ones, less what they have logged after its checkpoint, which is of `step`."""
    if step is None or not Path(cfg.ckpt_path).is_relative_to(cfg.run_dir):
        return _instances(OmegaConf.select(cfg, "logger"))
    entries = [entry for entry in (OmegaConf.select(cfg, "logger") or {}).values() if entry is not None]
    can_purge = (TensorBoardLogger, CSVLogger)
    return [
        instantiate(entry, _convert_="all", **({"purge_step": step} if get_object(entry["_target_"]) in can_purge else {}))
        for entry in entries
    ]


def _cluster_environment() -> ClusterEnvironment:
    """Who has started the ranks, said to Lightning: inside a SLURM job of one task it would guess wrong."""
    rank = this_rank()
    if rank is not None and rank.started_by == "slurm":
        return SLURMEnvironment(auto_requeue=False)
    return TorchElasticEnvironment() if rank is not None and rank.started_by == "torchrun" else LightningEnvironment()


def _plain_spec(spec: DataSpec) -> dict[str, Any]:
    names = None if spec.class_names is None else list(spec.class_names)
    return {"input_shape": list(spec.input_shape), "num_outputs": spec.num_outputs, "class_names": names}


def _spec(fields: dict[str, Any]) -> DataSpec:
    names = fields["class_names"]
    return DataSpec(tuple(fields["input_shape"]), fields["num_outputs"], None if names is None else tuple(names))
