"""DDP that sends gradients in fewer bits, by torch's communication hooks."""

from typing import Any

import torch
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from lockstep.trainer.strategies import DDP


class CommunicatingDDP(DDP):
    """Keyword arguments are those of DDP. Lightning itself registers communication hooks on GPUs alone."""

    def __init__(self, *, communication: dict[str, Any] | None, **ddp: Any) -> None:
        super().__init__(**ddp)
        self.communication = communication

    def configure_ddp(self) -> None:
        super().configure_ddp()
        self.register(self.model)

    def register(self, model: Any) -> None:
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
