"""Regression."""

from torch import Tensor

from lockstep.models.supervised import Supervised


class Regressor(Supervised):
    """Squared error, a mean over outputs; `mae` is the absolute one."""

    known_metrics = ("loss", "mae")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._step("train", batch)[0]

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("val", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("test", batch)

    def _evaluate(self, stage: str, batch: tuple[Tensor, Tensor]) -> Tensor:
        _, outputs = self._step(stage, batch)
        self.log_metrics(stage, outputs, batch[1].view_as(outputs))
        return outputs

    def _step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
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
