"""The metrics that a run is compared, stopped or saved by: whether the model declares them, and whether more of one is better."""

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.errors import config_error

UNKNOWN = "unknown"
# How the words in the names of metrics end. Others, and those that turn one around, need a mode.
_LESS = re.compile(r"(loss|error|mse|mae|mape|perplexity|nll|entropy|(?<![a-z])(wer|cer|ppl|fid))(?![a-z])", re.IGNORECASE)
_MORE = re.compile(r"(acc|accuracy|auc|roc|precision|recall|f1|iou|dice|psnr|bleu|score|reward|top\d+)(?![a-z])", re.IGNORECASE)


def monitored(cfg: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield the metrics that a run is compared, stopped or saved by: the key, and the name."""
    if cfg.optimized_metric is not None:
        yield "optimized_metric", cfg.optimized_metric
    callbacks = cfg.get("callbacks") or {}
    for key in ("model.lr_scheduler", *(f"callbacks.{name}" for name in callbacks)):
        if (metric := OmegaConf.select(cfg, f"{key}.monitor")) is not None:
            yield f"{key}.monitor", metric


def check_metrics(cfg: DictConfig) -> None:
    """Raise ConfigError for a metric that a shipped model does not declare, or whose name does not say which mode it has."""
    model: Any = OmegaConf.select(cfg, "model") or {}
    names = model.get("metrics") if "torchmetrics" in model else None  # a model of one's own declares none
    for key, metric in monitored(cfg):
        mode = "optimized_mode" if key == "optimized_metric" else key.replace(".monitor", ".mode")
        if OmegaConf.select(cfg, mode) == UNKNOWN:
            raise config_error(key, metric, f"the name does not say whether more of it is better; set {mode}=max or {mode}=min")
        if names is None:
            continue
        declared = [f"{stage}/{name}" for stage in ("train", "val", "test") for name in names]
        declared += [f"{stage}/{name}" for stage in ("val", "test") for name in model.torchmetrics or {}]
        if metric not in declared:
            words = f"the model declares {', '.join(declared)}; use one of these"
            raise config_error(key, metric, words + (", with its optimized_mode, or null" if key == "optimized_metric" else ""))


def mode_by_name(metric: object) -> str:
    """Return min for the name of a loss or an error, max for that of a score or of none, else UNKNOWN."""
    name = str(metric)
    if metric is None:
        return "max"
    if "neg" in name.lower():
        return UNKNOWN
    if _LESS.search(name):
        return "min"
    return "max" if _MORE.search(name) else UNKNOWN


def mode_for(metric: object, *, _root_: Any) -> str:
    """Return optimized_mode if the metric is the optimized one, else what its name says. OmegaConf passes the whole config."""
    return _root_.optimized_mode if metric == _root_.optimized_metric else mode_by_name(metric)
