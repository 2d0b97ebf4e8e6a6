"""How many processes may share the virtual workers."""

from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.config.rules import integer
from lockstep.errors import config_error

RULES = {"VirtualWorkers": {"threads": integer(1)}}


def _check_processes(cfg: DictConfig, _: str, plan: Plan) -> None:
    workers = cfg.trainer.strategy.workers
    if (parts := plan.accumulate_grad_batches) > 1:
        raise config_error("trainer.accumulate_grad_batches", parts, f"trainer.exact={workers} is given; accepted with it is 1")
    if workers % plan.world_size:
        accepted = f"the {workers} virtual workers of trainer.exact are not divided by {plan.world_size} processes"
        raise config_error("trainer.devices", plan.world_size, f"{accepted}; accepted is a divisor of {workers}")


CHECKS = {"Exact": _check_processes}
