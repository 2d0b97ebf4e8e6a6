"""Lightning's Tuner on the config of a run: a learning rate, and the largest batch that fits. One device trains."""

from typing import Any

from lightning.pytorch.tuner import Tuner
from omegaconf import DictConfig, OmegaConf

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import config_error


def find_rate(cfg: DictConfig, plan: Plan, first: float, last: float, steps: int) -> Any:
    """Return Lightning's learning-rate finder after a range test with the global batch of the run."""
    batch = {"global_batch_size": plan.global_batch_size, "batch_size": None}
    options = batch if "global_batch_size" in (cfg.datamodule or ()) else {}
    tuner, model, datamodule = _build(cfg, plan, options)
    return tuner.lr_find(model, datamodule=datamodule, min_lr=first, max_lr=last, num_training=steps, update_attr=False)


def find_batch_size(cfg: DictConfig, plan: Plan) -> int:
    """Return the largest batch with which three steps fit into the memory of the device, less a margin of 5%."""
    if "batch_size" not in (cfg.datamodule or ()):
        raise config_error("datamodule.batch_size", "null", "the data has no such key; add one that sets the samples of a batch")
    batch = {"global_batch_size": None} if "global_batch_size" in cfg.datamodule else {}
    tuner, model, datamodule = _build(cfg, plan, {"batch_size": 16, **batch})
    size = tuner.scale_batch_size(model, datamodule=datamodule, mode="binsearch", init_val=16, max_val=2**20)
    assert size is not None
    return size


def _build(cfg: DictConfig, plan: Plan, data: dict[str, Any]) -> tuple[Tuner, Any, Any]:
    """Build what the run trains, without callbacks and loggers, which the Tuner takes out, and without limits of length."""
    cfg = cfg.copy()
    for key in ("guards", "callbacks", "logger"):
        OmegaConf.update(cfg, key, {}, merge=False)
    cfg.datamodule.update(data) if data else None
    cfg.trainer.update({"devices": [*plan.device_ids][:1] if plan.device_ids else 1, "num_nodes": 1, "max_epochs": -1})
    cfg.trainer.update({"max_steps": -1, "max_time": None, "check_val_every_n_epoch": 2**30})
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    return Tuner(trainer), model, datamodule
