"""What the arguments of the ways to communicate accept, and what does not go with them."""

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import SEED, integer, one_of
from lockstep.errors import config_error
from lockstep.trainer.checks import CHECKS as TRAINER_CHECKS
from lockstep.trainer.checks import GRADIENT_SCALER
from lockstep.trainer.checks import RULES as TRAINER_RULES

RULES = {
    "CommunicatingDDP": TRAINER_RULES["DDP"],
    "HalfPrecision": {"dtype": one_of("float16", "bfloat16")},
    "PowerSGD": {"rank": integer(1), "start": integer(0), "seed": SEED},
    "LocalSGD": {"start": integer(0), "period": integer(1)},
}


def _check_precision(cfg: DictConfig, key: str, _plan: Plan) -> None:
    """What is carried from one gradient to the next would be of another scale."""
    name = str(OmegaConf.select(cfg, f"{key}._target_")).rpartition(".")[2]
    if (precision := cfg.trainer.get("precision")) in GRADIENT_SCALER:
        accepted = f"has a scaler of gradients, which does not go with {name}; accepted is bf16-mixed, 32-true"
        raise config_error("trainer.precision", precision, accepted)


def _check_own_steps(cfg: DictConfig, key: str, plan: Plan) -> None:
    """Processes take steps of their own between two averagings."""
    _check_precision(cfg, key, plan)
    if (ema := OmegaConf.select(cfg, "callbacks.ema")) is not None:
        accepted = "each process would have a mean of its own; accepted without trainer/communication=local_sgd"
        raise config_error("callbacks.ema", ema._target_, accepted)
    if OmegaConf.select(cfg, "guards.nonfinite.action") == "skip":
        accepted = "a process would leave out a step that others make; accepted with trainer/communication=local_sgd is stop"
        raise config_error("guards.nonfinite.action", "skip", accepted)


CHECKS = {"CommunicatingDDP": TRAINER_CHECKS["DDP"], "PowerSGD": _check_precision, "LocalSGD": _check_own_steps}
