"""Whether more of a metric is better, by its name: the default of `optimized_mode`, and of callbacks and schedules."""

import re
from typing import Any

from omegaconf import OmegaConf

UNKNOWN = "unknown"
# Metrics by the end of a word in their names, or by a whole word, as people and torchmetrics call them.
_LESS = r"loss|error|mse|mae|mape|perplexity|nll|entropy|divergence|distance"
_LESS_WORDS = r"err|wer|cer|mer|eer|ece|ppl|bpc|bpd|bpb|fid|kid|lpips|brier|crps|ce|bce|kl|cost|regret"
_MORE = r"acc|accuracy|auc|roc|prc|precision|recall|f1|fbeta|iou|jaccard|dice|psnr|ssim|bleu|rouge|score|reward|return|similarity"
_MORE_WORDS = r"ap|map|mrr|ndcg|r2|em|elbo|likelihood|mcc|kappa|pearson|spearman|sensitivity|specificity|snr|sdr|top\d+"


def _pattern(ends: str, words: str) -> re.Pattern[str]:
    return re.compile(rf"({ends}|(?<![a-z])({words}))(?![a-z])", re.IGNORECASE)


_LESS_IS_BETTER, _MORE_IS_BETTER = _pattern(_LESS, _LESS_WORDS), _pattern(_MORE, _MORE_WORDS)
_NEGATIVE = re.compile(r"neg(ative)?(?![a-z])", re.IGNORECASE)


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
