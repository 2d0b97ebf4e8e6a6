"""The metrics that a run is compared, stopped or saved by: those that its model declares, and whether more of one is better."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import is_plain
from lockstep.errors import config_error

UNKNOWN = "unknown"
# Metrics by the end of a word in their names, or by a whole word, as people and torchmetrics call them.
_LESS = r"loss|error|mse|mae|mape|perplexity|nll|entropy|divergence|distance"
_LESS_WORDS = r"err|wer|cer|mer|eer|ece|ppl|bpc|bpd|bpb|fid|kid|lpips|brier|crps|ce|bce|kl|cost|regret"
_MORE = r"acc|accuracy|auc|roc|prc|precision|recall|f1|fbeta|iou|jaccard|dice|psnr|ssim|bleu|rouge|score|reward|return|similarity"
_MORE_WORDS = r"ap|map|mrr|ndcg|r2|em|elbo|likelihood|mcc|kappa|pearson|spearman|sensitivity|specificity|snr|sdr|top\d+"
STAGES = ("train", "val", "test")
VALIDATION = ("validation", "valid", "val", "dev")  # as folders and files of that split are called


def _pattern(ends: str, words: str) -> re.Pattern[str]:
    return re.compile(rf"({ends}|(?<![a-z])({words}))(?![a-z])", re.IGNORECASE)


_LESS_IS_BETTER, _MORE_IS_BETTER = _pattern(_LESS, _LESS_WORDS), _pattern(_MORE, _MORE_WORDS)
_NEGATIVE = re.compile(r"neg(ative)?(?![a-z])", re.IGNORECASE)


def monitored(cfg: DictConfig) -> Iterator[tuple[str, str]]:
    """Yields the metrics that a run is compared, stopped or saved by: the key, and the name."""
    if cfg.optimized_metric is not None:
        yield "optimized_metric", cfg.optimized_metric
    groups = {"model.lr_scheduler": OmegaConf.select(cfg, "model.lr_scheduler")}
    groups |= {f"callbacks.{name}": cfg.callbacks[name] for name in cfg.get("callbacks") or {}}
    for name, group in groups.items():
        if isinstance(group, DictConfig) and group.get("monitor") is not None:
            yield f"{name}.monitor", group.monitor


def check_metric(cfg: DictConfig, key: str, metric: str) -> None:
    names = None if is_plain(cfg, "model") else OmegaConf.select(cfg, "model.metrics")
    if names is None:  # a model of one's own that declares none
        return
    declared = [f"{stage}/{name}" for stage in STAGES for name in names]
    declared += [f"{stage}/{name}" for stage in STAGES[1:] for name in OmegaConf.select(cfg, "model.torchmetrics") or {}]
    if metric not in declared:
        mode = ", with its optimized_mode, or null" if key == "optimized_metric" else ""
        raise config_error(key, metric, f"the model declares {', '.join(declared)}; use one of these{mode}")
    if key == "optimized_metric" and metric.startswith("test/") and not cfg.test:
        raise config_error(key, metric, "needs test=true")
    if metric.startswith("val/") and OmegaConf.select(cfg, "trainer.limit_val_batches") == 0:
        raise config_error(key, metric, "needs validation, and trainer.limit_val_batches is 0; use a metric of training, or null")
    if metric.startswith("val/") and not _has_validation(cfg):
        accepted = "set it above 0, also for data that has a validation split of its own, and ignores it"
        raise config_error(key, metric, f"needs validation; datamodule.val_fraction is 0; {accepted}")


def _has_validation(cfg: DictConfig) -> bool:
    """Returns whether there is a part of the training data, or a split of the data's own, to validate on."""
    fraction, folds, folder = (OmegaConf.select(cfg, f"datamodule.{name}") for name in ("val_fraction", "folds", "data_dir"))
    if fraction != 0 or folds or "val_length" in (cfg.datamodule or ()):
        return True
    # folders or files that are named for it, as an ImageFolder or the library `datasets` finds them
    pattern = rf"(?<![a-z])({'|'.join(VALIDATION)})(?![a-z])"
    places = [] if folder is None else [Path(folder), Path(folder, "data")]
    return any(re.search(pattern, path.name) for place in places for path in place.glob("*"))


def mode_by_name(metric: object) -> str:
    """Return min for the name of a loss or an error, max for that of a score or of none, else UNKNOWN. A word that ends in neg
    turns a loss around."""
    name = str(metric)
    if _LESS_IS_BETTER.search(name):
        return "max" if _NEGATIVE.search(name) else "min"
    return "max" if metric is None or _MORE_IS_BETTER.search(name) else UNKNOWN


def register_mode_resolvers() -> None:
    """Makes ${mode_by_name:METRIC} known, and ${mode_for:METRIC}, which is optimized_mode where METRIC is the optimized one."""

    def mode_for(metric: object, *, _root_: Any) -> str:
        return _root_.optimized_mode if metric == _root_.optimized_metric else mode_by_name(metric)

    OmegaConf.register_new_resolver("mode_by_name", mode_by_name, replace=True)
    OmegaConf.register_new_resolver("mode_for", mode_for, replace=True)
