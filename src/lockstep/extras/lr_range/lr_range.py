"""A learning rate range test: one short training whose rate rises until it diverges (Smith 2017, arXiv:1506.01186)."""

import math
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lockstep.errors import config_error
from lockstep.trainer.steps import begins_step, ends_step, log_metrics

_WINDOW = 0.1  # part of the steps over which losses are averaged


class LearningRateRange(Callback):
    """Raise the rate exponentially from `first` to `last` in `steps` optimizer steps, whatever the schedule, and stop when the
    mean of the latest losses is `stop_at` times the lowest it has been. The loss is that of the step's global batch, before the
    step; rates of other parameter groups keep their ratio to the first one's.

    When training ends, the curve is a picture: at `path`, and in TensorBoard.
    """

    def __init__(self, first: float, last: float, steps: int, stop_at: float, path: str) -> None:
        self.first, self.last, self.steps, self.stop_at, self.path = first, last, steps, stop_at, Path(path)
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.diverged_at: float | None = None  # a rate
        self._window = max(1, round(_WINDOW * steps))
        self._lowest = math.inf  # lowest mean of the latest losses
        self._loss: Tensor | float = 0.0  # loss of the step so far, on this rank
        self._ratios: list[tuple[dict[str, Any], float]] = []  # ratios of parameter groups' rates to the first one's

    @property
    def ended_by(self) -> str | None:
        return None if self.diverged_at is None else f"the loss has diverged at a rate of {self.diverged_at:.2g}"

    def facts(self) -> dict[str, Any]:
        """Return the facts for the record of the run."""
        rate, reason = suggested(self.rates, smoothed(self.losses, self._window), self.diverged_at)
        curve = {"rates": self.rates, "losses": self.losses, "diverged_at": self.diverged_at}
        return {"lr_range": curve | {"suggestion": rate, "reason": reason}}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization:
            words = "optimizes by hand; use a model that leaves it to Lightning: one loss and one rate a step"
            raise config_error("model", type(pl_module).__name__, words)
        trainer.lr_scheduler_configs.clear()
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self._ratios = [(group, group["lr"] / groups[0]["lr"] if groups[0]["lr"] else 1.0) for group in groups]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if begins_step(trainer, batch_idx):
            rate = self.first * (self.last / self.first) ** (trainer.global_step / max(1, self.steps - 1))
            self.rates.append(rate)
            self._loss = 0.0
            for group, ratio in self._ratios:
                group["lr"] = rate * ratio

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._loss = self._loss + outputs["loss"].detach()
        if not ends_step(trainer, batch_idx):
            return
        loss = float(trainer.strategy.reduce(self._loss, reduce_op="mean"))
        log_metrics(trainer, {"lr_range/loss": loss, "lr_range/lr": self.rates[-1]})
        diverges = not math.isfinite(loss)
        if not diverges:
            self.losses.append(loss)
            latest = self.losses[-self._window :]
            self._lowest = min(self._lowest, mean := sum(latest) / len(latest))
            diverges = mean > self.stop_at * self._lowest
        if diverges:
            self.diverged_at = self.rates[-1]
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del self.rates[len(self.losses) :]  # the loss was not finite there
        if not trainer.is_global_zero:
            return
        figure = _curve(self.rates, self.losses, smoothed(self.losses, self._window), self.facts()["lr_range"]["suggestion"])
        figure.savefig(self.path, dpi=150)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure("lr_range", figure, trainer.global_step)


def smoothed(losses: list[float], window: int) -> list[float]:
    """Return the mean over about `window` losses around each; towards the ends over fewer, as many on either side."""
    means = []
    for i in range(len(losses)):
        reach = min(window // 2, i, len(losses) - 1 - i)
        means.append(sum(losses[i - reach : i + reach + 1]) / (2 * reach + 1))
    return means


def suggested(rates: list[float], losses: list[float], diverged_at: float | None) -> tuple[float | None, str]:
    """Suggest, of rates at equal ratios, that at which smoothed losses fall fastest, over a fifth of them, before the lowest."""
    tried = f"from {rates[0]:.2g} to {rates[-1]:.2g}" if rates else "at the first rate"
    lowest = losses.index(min(losses)) if losses else 0
    if lowest < 2:
        return None, f"the loss falls nowhere {tried}; try lower rates (lr_range.from), or more lr_range.steps"
    reach = max(1, len(losses) // 10)
    falls = [losses[max(0, i - reach)] - losses[min(lowest, i + reach)] for i in range(lowest + 1)]
    rate = rates[falls.index(max(falls))]
    end = f"it is lowest at {rates[lowest]:.2g}"
    if diverged_at is not None:
        end += f" and diverges at {diverged_at:.2g}"
    elif lowest == len(rates) - 1:
        end = f"it still falls at {rates[-1]:.2g}: try larger rates too (lr_range.to)"
    return rate, f"there the loss falls fastest, of the rates {tried}; {end}"


def _curve(rates: list[float], losses: list[float], means: list[float], suggested_rate: float | None) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.add_subplot(xscale="log", xlabel="learning rate", ylabel="loss of the step")
    axis.plot(rates, losses, color="0.75", linewidth=1, label="each step")
    axis.plot(rates, means, color="tab:blue", linewidth=2, label="smoothed")
    if suggested_rate is not None:
        axis.axvline(suggested_rate, color="black", linestyle="--", linewidth=1, label=f"suggested: {suggested_rate:.2g}")
    if means:
        axis.set_ylim(top=means[0] + 0.5 * (means[0] - min(means)) + 1e-12)  # losses that diverge leave the picture
    axis.legend()
    axis.grid(alpha=0.3)
    return figure
