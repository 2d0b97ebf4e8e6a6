"""DDP that sends gradients in 16 bits, by torch's communication hooks."""

from typing import Any, Literal

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from lockstep.strategies.ddp import DDP


class CommunicatingDDP(DDP):
    """DDP with a communication hook, which Lightning registers on GPUs alone. Keyword arguments are those of DDP."""

    def __init__(self, *, communication: Literal["fp16", "bf16"], **ddp: Any) -> None:
        super().__init__(**ddp)
        self.communication = communication

    def configure_ddp(self) -> None:
        super().configure_ddp()
        self.register(self.model)

    def register(self, model: Any) -> None:
        model.register_comm_hook(None, getattr(default_hooks, f"{self.communication}_compress_hook"))
