"""What the arguments of the strategy accept, and what does not go with it."""

from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.config.rules import integer, one_of
from lockstep.errors import config_error
from lockstep.extras.sharding.checks import check_precision

RULES = {
    "PipelineTrainer": {"stages": integer(1)},
    "Pipeline": {
        "stages": integer(1),
        "microbatches": integer(1),
        "schedule": one_of("1f1b", "gpipe"),
    },
}


def _check(cfg: DictConfig, key: str, plan: Plan) -> None:
    check_precision(cfg, key, plan)
    if plan.world_size > 1 and cfg.model.get("compile"):
        why = "compiles the net's forward pass, of which each stage computes a part in another way; accepted is false"
        raise config_error("model.compile", "true", why)
    if plan.world_size > 1 and "parity" in cfg:
        why = "leaves each process the gradients of its own layers, which scripts/parity.py does not gather; accepted is another"
        raise config_error("trainer.strategy._target_", cfg.trainer.strategy._target_, why)


CHECKS = {"Pipeline": _check}
