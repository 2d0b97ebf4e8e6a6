"""What freezes a layer of the MLP, and unfreezes it while the model trains."""

from typing import Any

from lightning.pytorch.callbacks import BaseFinetuning
from torch.optim import Adam, Optimizer


class Unfreeze(BaseFinetuning):
    """Lightning's, from the second epoch on, at a tenth of the rate."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net.layers[1])
        pl_module.configure_optimizers = lambda: Adam(filter(lambda p: p.requires_grad, pl_module.parameters()), lr=0.01)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net.layers[1], optimizer)
