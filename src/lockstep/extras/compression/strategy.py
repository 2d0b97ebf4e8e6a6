"""DDP that sends gradients in fewer bits, by torch's communication hooks."""

from typing import Any

import torch
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from lockstep.errors import check_at_least, config_error
from lockstep.extras.nonfinite import NonFinite
from lockstep.trainer.strategies import DDP


class CommunicatingDDP(DDP):
    """DDP with a communication hook, which Lightning registers on GPUs alone. Keyword arguments are those of DDP."""

    def __init__(self, *, communication: dict[str, Any] | None, **ddp: Any) -> None:
        super().__init__(**ddp)
        for name in (communication or {}).keys() - {"hook", "rank", "start", "seed"}:
            raise ValueError(f"communication.{name}=...: no such argument; use hook, rank, start, seed")
        hook = (communication or {}).get("hook", "fp16")
        if hook not in ("fp16", "bf16", "power_sgd"):
            raise ValueError(f"communication.hook={hook}: is not a hook; use fp16, bf16, power_sgd")
        if hook == "power_sgd":
            check_at_least(1, **{"communication.rank": (communication or {}).get("rank")})
            check_at_least(2, **{"communication.start": (communication or {}).get("start")})  # a bound of torch's
        self.communication = communication

    def configure_ddp(self) -> None:
        super().configure_ddp()
        self.register(self.model)

    def register(self, model: Any) -> None:
        trainer: Any = self.lightning_module and self.lightning_module.trainer
        precision: Any = self.precision_plugin
        if (self.communication or {}).get("hook") == "power_sgd" and trainer is not None:
            if getattr(precision, "scaler", None) is not None:
                raise config_error(
                    "trainer.precision", precision.precision, "does not go with PowerSGD; use bf16-mixed or 32-true"
                )
            if any(isinstance(one, NonFinite) and one.action == "skip" for one in trainer.callbacks):
                raise config_error("guards.nonfinite.action", "skip", "PowerSGD carries a NaN into all later steps; use stop")
        match self.communication:
            case {"hook": "power_sgd", "rank": rank, "start": start, "seed": seed}:
                model.register_comm_hook(PowerSGDState(None, rank, start, random_seed=seed), _power_sgd)
            case {"hook": hook}:
                model.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))


def _power_sgd(state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = powerSGD_hook(state, bucket)
    if bucket.buffer().device.type == "cpu":
        future.wait()  # the all-reduces of two buckets would wait for each other in gloo's two threads
    return future
