"""What the ways to communicate accept, and what does not go with them."""

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import integer, one_of
from lockstep.errors import config_error
from lockstep.trainer import checks

_HOOK = {"hook": one_of("fp16", "bf16", "power_sgd"), "rank": integer(1), "start": integer(2)}  # a bound of torch's PowerSGD
RULES = {"CommunicatingDDP": checks.RULES["DDP"] | {f"communication.{name}": rule for name, rule in _HOOK.items()}}


def _check(cfg: DictConfig, key: str, plan: Plan) -> None:
    checks.CHECKS["DDP"](cfg, key, plan)
    is_power_sgd = OmegaConf.select(cfg, f"{key}.communication.hook") == "power_sgd"
    if is_power_sgd and (precision := cfg.trainer.get("precision")) in checks.GRADIENT_SCALER:
        raise config_error("trainer.precision", precision, "does not go with PowerSGD; accepted is bf16-mixed, 32-true")
    if is_power_sgd and OmegaConf.select(cfg, "guards.nonfinite.action") == "skip":
        raise config_error("guards.nonfinite.action", "skip", "PowerSGD carries a NaN into all later steps; accepted is stop")


CHECKS = {"CommunicatingDDP": _check}
