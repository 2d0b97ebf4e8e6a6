"""Metrics that are no means over samples (F1, AUROC, R2), as torchmetrics has them."""

from collections.abc import Mapping
from typing import cast

import torch.distributed as dist
from torch import Tensor, nn
from torchmetrics import Metric

from lockstep.errors import config_error


class EpochMetrics(nn.Module):
    """Named torchmetrics, each one number for all samples of an evaluation, over all ranks.

    torchmetrics synchronises the ranks. The states of a rank without a sample have no shape, with which a gather would hang: that
    rank takes no part in it, and is sent the result.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        for name, metric in metrics.items():
            if not isinstance(metric, Metric):
                raise config_error(f"model.torchmetrics.{name}", type(metric).__name__, "use a torchmetrics.Metric")
        self.metrics = nn.ModuleDict({name: metric.clone() for name, metric in metrics.items()})

    def _each(self) -> list[Metric]:
        return cast("list[Metric]", list(self.metrics.values()))

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Update with predictions and targets (n, ...); n = 0 changes nothing."""
        if len(targets):
            for metric in self._each():
                metric.update(predictions, targets)

    def compute(self) -> dict[str, Tensor]:
        """Return one number for each name, the same on every rank; a collective. Raises ConfigError for several."""
        if not (dist.is_available() and dist.is_initialized()):
            return self._computed(None)
        has_sample: list[bool] = [False] * dist.get_world_size()
        dist.all_gather_object(has_sample, all(metric.update_called for metric in self._each()))
        if all(has_sample):
            return self._computed(None)
        ranks = [rank for rank, has in enumerate(has_sample) if has]
        group = dist.new_group(ranks)
        values = [self._computed(group) if isinstance(group, dist.ProcessGroup) else None]
        dist.broadcast_object_list(values, src=ranks[0])
        dist.destroy_process_group(group)
        return values[0] or {}

    def reset(self) -> None:
        for metric in self._each():
            metric.reset()

    def _computed(self, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for name, metric in zip(self.metrics, self._each(), strict=True):
            metric.process_group = group
            value = metric.compute()
            if not isinstance(value, Tensor) or value.numel() != 1:
                given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise config_error(f"model.torchmetrics.{name}", type(metric).__name__, f"gives {given}; use one number")
            values[name] = value.detach().double().cpu()
        return values
