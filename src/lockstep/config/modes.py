"""Whether more of a metric is better, by its name: the default of `optimized_mode`, and of callbacks and schedules."""

import re
from typing import Any

from omegaconf import OmegaConf

_LESS_IS_BETTER = re.compile(r"(?!.*neg(ative)?(?![a-z])).*(loss|error|mse|mae|perplexity)(?![a-z])", re.IGNORECASE)


def mode_by_name(metric: object) -> str:
    """Returns min where a word ends in loss, error, mse, mae or perplexity and none ends in neg; max for other metrics."""
    return "min" if _LESS_IS_BETTER.match(str(metric)) else "max"


def register_mode_resolvers() -> None:
    """Makes ${mode_by_name:METRIC} known, and ${mode_for:METRIC}, which is optimized_mode where METRIC is the optimized one."""

    def mode_for(metric: object, *, _root_: Any) -> str:
        return _root_.optimized_mode if metric == _root_.optimized_metric else mode_by_name(metric)

    OmegaConf.register_new_resolver("mode_by_name", mode_by_name, replace=True)
    OmegaConf.register_new_resolver("mode_for", mode_for, replace=True)
