"""What the search for a batch size does before a run begins."""

from omegaconf import DictConfig, OmegaConf

from lockstep.config.checks import check_rules
from lockstep.config.plan import Plan
from lockstep.config.rules import above
from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents


@buildable
class FindBatchSize(RunEvents):
    """`datamodule.batch_size=auto` becomes a number."""

    unfilled = {"datamodule.batch_size": ("auto", 1)}

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        check_rules(cfg, {"memory_per_process": above(0).or_null()})
        if _is_searched(cfg):
            from lockstep.extras.batch_size.batch_size import check_search

            check_search(cfg, plan)

    def fill_in(self, config: DictConfig) -> None:
        if _is_searched(config):
            from lockstep.extras.batch_size.batch_size import find_batch_size

            find_batch_size(config)


def _is_searched(cfg: DictConfig) -> bool:
    return OmegaConf.select(cfg, "datamodule.batch_size") == "auto"
