"""What the arguments of the strategy and the callback accept, and what does not go with it."""

from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.config.rules import PATTERN, YES_NO, integer
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
}


def check_precision(cfg: DictConfig, _: str, plan: Plan) -> None:
    if plan.world_size > 1 and (precision := cfg.trainer.get("precision")) in GRADIENT_SCALER:
        why = "its scaler of gradients does not see the parts that other processes have; accepted is bf16-mixed, 32-true, 64-true"
        raise config_error("trainer.precision", precision, why)


CHECKS = {"ModelParallel": check_precision}
