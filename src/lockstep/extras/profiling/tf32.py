"""The precision of float32 on GPUs that have another one."""

import logging

import torch
from lightning import Callback, LightningModule, Trainer

log = logging.getLogger(__name__)


class TF32(Callback):
    """Whether products of float32 `matrices` and `convolutions` may be rounded to TF32 (10 bits of mantissa, from compute
    capability 8.0 on); set for this process before anything is computed, and said where the GPU has it."""

    def __init__(self, matrices: bool, convolutions: bool) -> None:
        self.matrices, self.convolutions = matrices, convolutions

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        torch.set_float32_matmul_precision("high" if self.matrices else "highest")
        torch.backends.cudnn.allow_tf32 = self.convolutions
        device = trainer.strategy.root_device
        if stage == "fit" and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
            kinds = {"products of matrices": self.matrices, "convolutions": self.convolutions}
            said = ", ".join(f"{kind} in {'TF32' if is_tf32 else 'float32'}" for kind, is_tf32 in kinds.items())
            log.info(f"float32 on this GPU: {said} (callbacks.tf32)")
