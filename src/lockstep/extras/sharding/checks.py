"""What the arguments of the strategy and the callback accept, and what does not go with it."""

from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.config.rules import PATTERN, YES_NO, integer, one_of
from lockstep.errors import config_error
from lockstep.trainer.checks import GRADIENT_SCALER

RULES = {
    "ActivationCheckpointing": {"match": PATTERN},
    "ModelParallel": {
        "blocks": PATTERN,
        "tensor_parallel_size": integer(1),
        "plan.colwise": PATTERN,
        "plan.rowwise": PATTERN,
        "sharded_checkpoints": YES_NO,
    },
    "PipelineTrainer": {"stages": integer(1)},
    "Pipeline": {
        "stages": integer(1),
        "microbatches": integer(1),
        "schedule": one_of("1f1b", "gpipe"),
        "sharded_checkpoints": YES_NO,
    },
}


def _check(cfg: DictConfig, _: str, plan: Plan) -> None:
    if plan.world_size > 1 and (precision := cfg.trainer.get("precision")) in GRADIENT_SCALER:
        why = "its scaler of gradients does not see the parts that other processes have; accepted is bf16-mixed, 32-true, 64-true"
        raise config_error("trainer.precision", precision, why)


def _check_pipeline(cfg: DictConfig, key: str, plan: Plan) -> None:
    _check(cfg, key, plan)
    if plan.world_size > 1 and cfg.model.get("compile"):
        why = "compiles the net's forward pass, of which each stage computes a part in another way; accepted is false"
        raise config_error("model.compile", "true", why)
    if plan.world_size > 1 and "parity" in cfg:
        why = "leaves each process the gradients of its own layers, which scripts/parity.py does not gather; accepted is another"
        raise config_error("trainer.strategy._target_", cfg.trainer.strategy._target_, why)


CHECKS = {"ModelParallel": _check, "Pipeline": _check_pipeline}
