"""What the search for a batch size does before a run begins, and what a run does that is out of memory all the same."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.checks import check_rules
from lockstep.config.overrides import override_key
from lockstep.config.plan import Plan
from lockstep.config.rules import YES_NO, above
from lockstep.config.targets import buildable
from lockstep.extras.batch_size import HALVED
from lockstep.launchers.environment import this_rank
from lockstep.launchers.outcome import Outcome
from lockstep.runs.events import Remedy, RunEvents
from lockstep.runs.identity import Identity


@buildable
class FindBatchSize(RunEvents):
    """`datamodule.batch_size=auto` becomes a number, which is halved where it proves too large.

    halved: the sizes that were out of memory while the run trained.
    """

    unfilled = {"datamodule.batch_size": ("auto", 1)}
    settings = ("halve_batch_size",)

    def __init__(self, halved: Sequence[int] = ()) -> None:
        self.halved, self._kills = [*halved], 0

    def arguments(self, arguments: list[str], values: Mapping[str, str], saved: Identity | None) -> list[str]:
        if saved is None:  # a rank's, or those of a new run, which has not been out of memory, be its settings another's
            is_rank = (rank := this_rank()) is not None and rank.started_by == "parent"
            return arguments if is_rank else [item for item in arguments if override_key(item) != HALVED]
        from lockstep.extras.batch_size.halving import with_smaller_batches

        return with_smaller_batches(arguments, values, saved.overrides)

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        check_rules(cfg, {"memory_per_process": above(0).or_null(), "halve_batch_size": YES_NO.or_null()})
        if _is_searched(cfg):
            from lockstep.extras.batch_size.batch_size import check_search

            check_search(cfg, plan)
        if self.may_remedy(cfg):
            from lockstep.extras.batch_size.halving import check_halving

            check_halving(cfg)

    def fill_in(self, config: DictConfig) -> None:
        if _is_searched(config):
            from lockstep.extras.batch_size.batch_size import find_batch_size

            find_batch_size(config)

    def may_remedy(self, cfg: DictConfig) -> bool:
        return OmegaConf.select(cfg, "halve_batch_size") is True

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        if self.may_remedy(cfg):
            from lockstep.extras.batch_size.halving import kernel_kills

            self._kills = kernel_kills()

    def remedy(self, cfg: DictConfig, plan: Plan, outcome: Outcome) -> Remedy | None:
        if not self.may_remedy(cfg):
            return None
        from lockstep.extras.batch_size.halving import change_saved_config, halve, kernel_kills

        before, self._kills = self._kills, kernel_kills()
        remedy = halve(cfg, plan, outcome, was_killed=self._kills > before)
        if remedy is not None:
            change_saved_config(Path(cfg.run_dir), remedy.values)
        return remedy

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        if self.halved:
            from lockstep.extras.batch_size.record import OutOfMemory

            trainer.callbacks.append(OutOfMemory(self.halved))


def _is_searched(cfg: DictConfig) -> bool:
    return OmegaConf.select(cfg, "datamodule.batch_size") == "auto"
