"""What strategies have in common under which a process has a part of the model, and checkpoints are plain files."""

from abc import abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim import LBFGS, Optimizer

from lockstep.errors import config_error
from lockstep.trainer.strategies import PlannedWorldSize


class DividedModel(PlannedWorldSize, ModelParallelStrategy):
    """Lightning's ModelParallelStrategy for models that do not divide themselves in `configure_model`: `parallelize` does it."""

    # Lightning's own save and load by torch.distributed.checkpoint, without CheckpointIO, and pass callbacks over.
    restore_checkpoint_after_setup = ParallelStrategy.restore_checkpoint_after_setup  # pyright: ignore
    lightning_restore_optimizer = ParallelStrategy.lightning_restore_optimizer  # pyright: ignore
    lightning_module_state_dict = ParallelStrategy.lightning_module_state_dict
    optimizer_state = ParallelStrategy.optimizer_state

    @abstractmethod
    def parallelize(self, model: Any) -> None:
        """Leaves this process its part of a model."""

    @abstractmethod
    def _clip_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clips gradients by their norm over all parts."""

    def setup(self, trainer: Trainer) -> None:
        assert self.accelerator is not None
        assert isinstance(self.lightning_module, LightningModule)
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.lightning_module)
        self.parallelize(self.lightning_module)
        self.model_to_device()
        self.precision_plugin.clip_grad_by_norm = self._clip_by_norm
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        if any(isinstance(optimizer, LBFGS) for optimizer in self.optimizers):
            needs = "sees all weights as one vector, of which a process holds a part; accepted is an optimizer that does not"
            raise config_error("model.optimizer._target_", "torch.optim.LBFGS", needs)

    @torch.no_grad()
    def _begin_as_rank_zero(self, model: nn.Module) -> None:
        """Broadcasts rank zero's tensors as DDP does, one tensor at a time: the full model need not fit the device."""
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.detach().to(self.root_device).contiguous()
            dist.broadcast(sent, src=0)
            tensor.data = sent.to(tensor.device)  # fully_shard takes what is contiguous alone
