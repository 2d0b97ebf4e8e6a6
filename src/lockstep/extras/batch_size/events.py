"""What the search for a batch size does before a run begins."""

from omegaconf import DictConfig

from lockstep.config.checks import check_rules
from lockstep.config.plan import Plan
from lockstep.config.rules import above
from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents
from lockstep.runs.validation import is_searched


@buildable
class FindBatchSize(RunEvents):
    """`datamodule.batch_size=auto` becomes a number."""

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        check_rules(cfg, {"memory_per_process": above(0).or_null()})
        if is_searched(cfg):
            from lockstep.extras.batch_size.batch_size import check_search

            check_search(plan, cfg.memory_per_process)

    def fill_in(self, config: DictConfig) -> None:
        if is_searched(config):
            from lockstep.extras.batch_size.batch_size import find_batch_size

            find_batch_size(config)
