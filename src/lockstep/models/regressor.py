"""Regression."""

from typing import Any

from torch import Tensor

from lockstep.errors import ConfigError, config_error
from lockstep.models.task import Task


class Regressor(Task):
    """Mean squared error; `mae` is the mean absolute error. Both are means over samples and outputs."""

    def __init__(self, **task: Any) -> None:
        super().__init__(**task)
        unknown = set(self.metric_names) - {"loss", "mae"}
        if unknown and type(self).measure is Regressor.measure:
            raise config_error("model.metrics", sorted(unknown), "a regressor measures loss and mae")

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Measure outputs (n, num_outputs) and targets of that shape, or (n,) for one output. Raises ConfigError for others."""
        error = outputs - _shaped_as(outputs, targets).to(outputs.dtype)
        return {"loss": error.square().mean(dim=1), "mae": error.detach().abs().mean(dim=1)}

    def for_torchmetrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, _shaped_as(outputs, targets)


def _shaped_as(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the targets in the outputs' shape: by broadcasting, (n,) and (n, 1) would give an error per pair of samples."""
    wanted = tuple(outputs.shape)
    if tuple(targets.shape) not in (wanted, wanted[:-1] if wanted[-1:] == (1,) else wanted):
        raise ConfigError(
            f"datamodule: its targets have the shape {tuple(targets.shape)} and the model's outputs {wanted}; "
            "accepted by a regressor are targets of the outputs' shape, or (n,) for a single output"
        )
    return targets.reshape(wanted)
