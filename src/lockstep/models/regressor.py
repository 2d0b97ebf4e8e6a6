"""Regression."""

from torch import Tensor

from lockstep.models.supervised import Supervised


class Regressor(Supervised):
    """Squared error, a mean over outputs; `mae` is the absolute one."""

    known_metrics = ("loss", "mae")

    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean loss () and the outputs of inputs (n, ...) and targets (n, outputs), or (n,) for one output."""
        inputs, targets = batch
        outputs = self(inputs)
        targets = targets.view_as(outputs)  # raises for other shapes, which would be broadcast
        loss = self.loss(outputs, targets)
        values = {"loss": loss.detach(), "mae": (outputs - targets).detach().abs().mean()}
        self.log_means(stage, {name: values[name] for name in self.metric_names}, len(targets))
        return loss, outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return a mean over samples and outputs, both (n, outputs)."""
        return (outputs - targets).square().mean()

    def for_torchmetrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, targets.view_as(outputs)
