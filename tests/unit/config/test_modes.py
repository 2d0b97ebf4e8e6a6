"""Whether more of a metric is better: said by optimized_mode, or else by the metric's name."""

import pytest
from omegaconf import OmegaConf

from lockstep.config.metrics import mode_by_name
from lockstep.runs.composition import compose

EARLY = ("callbacks=early_stopping", "model/lr_scheduler=plateau")


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        *((name, "min") for name in ("val/loss", "val_loss/dataloader_idx_0", "test_rmse", "perplexity")),
        *((name, "max") for name in ("val/acc", "lossless_ratio", "val/f1")),
    ],
)
def test_a_name_says_whether_less_is_better(metric: str, mode: str) -> None:
    assert mode_by_name(metric) == mode


@pytest.mark.parametrize(
    ("overrides", "modes"),
    [
        ((), ("max", "max", "max", "max")),
        (("optimized_metric=val/loss",), ("min", "min", "min", "min")),
        (("optimized_metric=val/loss", "optimized_mode=max"), ("max", "max", "max", "max")),
        (("callbacks.early_stopping.monitor=val/loss",), ("max", "max", "min", "max")),
    ],
)
def test_what_is_looked_at_by_a_metric_takes_its_mode(overrides: tuple[str, ...], modes: tuple[str, ...]) -> None:
    cfg = compose(*EARLY, *overrides)
    keys = ("optimized_mode", "callbacks.best_checkpoint.mode", "callbacks.early_stopping.mode", "model.lr_scheduler.mode")
    assert tuple(OmegaConf.select(cfg, key) for key in keys) == modes
