"""Regression."""

from typing import Any

import torch
from torch import Tensor

from lockstep.errors import config_error
from lockstep.models.task import Task


class Regressor(Task):
    """Mean squared error; `mae` is the mean absolute error. Both are means over samples and outputs."""

    def __init__(self, **task: Any) -> None:
        super().__init__(**task)
        if unknown := set(self.train_means.names) - {"loss", "mae"}:
            raise config_error("model.metrics", sorted(unknown), "a regressor measures loss and mae")

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """From outputs and targets, both (n, num_outputs)."""
        error = outputs - targets.to(outputs.dtype)
        return {"loss": error.square().mean(dim=1), "mae": error.detach().abs().mean(dim=1)}

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Outputs (n, num_outputs) of inputs (n, *input_shape)."""
        self.eval()
        return self(inputs.to(self.device))
