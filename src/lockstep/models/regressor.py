"""Regression."""

from torch import Tensor

from lockstep.models.supervised import Supervised


class Regressor(Supervised):
    """Mean squared error over samples and outputs; `mae` is the mean absolute error."""

    known_metrics = ("loss", "mae")

    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean loss () and the outputs of inputs (n, ...) and targets (n, outputs), or (n,) for one output."""
        inputs, targets = batch
        outputs = self(inputs)
        targets = targets.view_as(outputs)  # raises for other shapes, which would be broadcast
        loss = self.loss(outputs, targets)
        self.log_means(stage, {"loss": loss.detach(), "mae": (outputs - targets).detach().abs().mean()}, len(targets))
        return loss, outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over samples and outputs, both (n, outputs)."""
        return (outputs - targets).square().mean()
