"""Whether more of a metric is better: said by optimized_mode, or else by the metric's name."""

import pytest
from omegaconf import OmegaConf

from lockstep.errors import ConfigError
from lockstep.metrics import mode_by_name
from lockstep.runs.composition import compose
from lockstep.runs.validation import check, validated

EARLY = ("callbacks=early_stopping", "model/lr_scheduler=plateau")


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        *((name, "min") for name in ("val/loss", "val_loss/dataloader_idx_0", "test_rmse", "perplexity", "val_wer", "fid")),
        *((name, "max") for name in ("val/acc", "val/f1", "val_AUROC", "top5")),
        *((name, "unknown") for name in ("lossless_ratio", "power", "answer", "neg_loss")),
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


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("optimized_metric=val/epe",), "optimized_metric=val/epe: the name .* set optimized_mode=max or optimized_mode=min"),
        (
            ("callbacks.early_stopping.monitor=val/epe",),
            r"callbacks\.early_stopping\.monitor=val/epe: .* set callbacks\.early_stopping\.mode=max or .*\.mode=min",
        ),
    ],
)
def test_a_name_that_does_not_say_it_needs_a_mode(overrides: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}$"):
        check(compose(*EARLY, *overrides))
    validated(compose(*EARLY, "~model.metrics", "optimized_metric=val/epe", "optimized_mode=min", "trainer=cpu"))
