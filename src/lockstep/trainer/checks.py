"""What the arguments of a trainer, its strategy and the strategies of this package accept, and what does not go together."""

import datetime
from importlib import import_module
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import YES_NO, Rule, integer, is_int, number, one_of
from lockstep.errors import config_error


def _is_devices(value: Any) -> bool:
    if OmegaConf.is_list(value):
        return len(value) > 0 and all(is_int(i) and i >= 0 for i in value) and len(set(value)) == len(value)
    return value in ("auto", -1) or (is_int(value) and value >= 1)


def _is_duration(value: object) -> bool:
    try:
        days, hours, minutes, seconds = (int(part) for part in str(value).split(":"))
        return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) > datetime.timedelta()
    except (ValueError, OverflowError):  # beyond any calendar
        return False


def _is_backend(name: Any) -> bool:
    return name in ("nccl", "gloo") or import_module("torch.distributed").is_backend_available(str(name))


UNENDING = Rule("accepted is an integer of at least 1, or -1 for no limit", lambda v: is_int(v) and (v >= 1 or v == -1))
AMOUNT = Rule(
    "accepted is a number of batches of at least 1, or a fraction above 0.0 and up to 1.0",
    lambda v: (is_int(v) and v >= 1) or (isinstance(v, float) and 0 < v <= 1),
)
LIMIT = Rule(
    "accepted is a number of batches, or a fraction between 0.0 and 1.0",
    lambda v: (is_int(v) and v >= 0) or (isinstance(v, float) and 0 <= v <= 1),
)
BACKEND = Rule("accepted is nccl, gloo, another one that this torch was built with", _is_backend)
PRECISIONS = ("32-true", "32", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true", "64", "bf16", 16, 32, 64)
GRADIENT_SCALER = (16, "16-mixed")  # the precisions in which gradients are scaled

RULES = {
    "*": {
        **dict.fromkeys(("enable_model_summary", "enable_progress_bar", "sync_batchnorm"), YES_NO),
        **dict.fromkeys(("accumulate_grad_batches", "log_every_n_steps"), integer(1)),
        "accelerator": one_of("auto", "cpu", "gpu", "cuda", "mps"),
        "devices": Rule("accepted is a number of at least 1, auto, or a list of GPU ids", _is_devices),
        "num_nodes": integer(1).or_auto(),
        "precision": one_of(*PRECISIONS),
        "max_epochs": UNENDING.or_null(),
        "max_steps": UNENDING,
        "max_time": Rule("accepted is a time as DD:HH:MM:SS", _is_duration).or_null(),
        "gradient_clip_val": number(0).or_null(),
        "gradient_clip_algorithm": one_of("norm", "value").or_null(),
        "limit_train_batches": AMOUNT,
        "limit_val_batches": LIMIT,
        "limit_test_batches": LIMIT,
        "check_val_every_n_epoch": integer(1).or_null(),
        "val_check_interval": AMOUNT,
        "num_sanity_val_steps": integer(-1).or_null(),
        "deterministic": one_of(True, False, "warn"),
        "benchmark": YES_NO.or_null(),
        "strategy.process_group_backend": BACKEND.or_null(),
        "strategy.timeout": number(1, 10**7),
    },
    "DDP": {
        **dict.fromkeys(("gradient_as_bucket_view", "find_unused_parameters", "static_graph"), YES_NO),
        "bucket_cap_mb": number(0.001),
    },
}


def _check_trainer(cfg: DictConfig, key: str, plan: Plan) -> None:
    trainer = cfg.trainer
    interval = trainer.get("val_check_interval")
    if trainer.get("check_val_every_n_epoch", 1) is None and type(interval) is float:
        accepted = f"needs trainer.val_check_interval as a number of batches, which is {interval:g}; accepted is an integer"
        raise config_error(f"{key}.check_val_every_n_epoch", "null", accepted)
    backend = trainer.strategy.get("process_group_backend")
    if plan.world_size > 1 and backend == "nccl" and plan.accelerator != "gpu":
        raise config_error(f"{key}.strategy.process_group_backend", backend, "is for GPUs; accepted is gloo, or null")


def _check_ddp(cfg: DictConfig, key: str, plan: Plan) -> None:
    if plan.world_size > 1 and cfg.trainer.strategy.get("static_graph") and plan.accumulate_grad_batches > 1:
        why = "DDP then exchanges gradients in every backward pass, and trainer.accumulate_grad_batches leaves some out"
        raise config_error(f"{key}.static_graph", "true", f"{why}; accepted is false")


CHECKS = {"*": _check_trainer, "DDP": _check_ddp}
