"""Population based training in generations of jobs: Ray Tune's scheduler says which members go on, and which are given up for a
fork of a better one with other values."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig

from lockstep.config.rules import integer
from lockstep.errors import config_error
from lockstep.extras.ray_cluster.parts import TIME
from lockstep.extras.ray_cluster.reports import drawing_from
from lockstep.extras.ray_cluster.stopping import GENERATION

log = logging.getLogger(__name__)


class Population:
    """What the scheduler asks Ray Tune's controller for. All members are paused whenever it is asked: their jobs have ended. One
    whose job has failed leaves the population, as a trial of Ray Tune's does."""

    search_alg = None

    def __init__(self, scheduler: Any, configs: Sequence[dict[str, Any]], seed: int) -> None:
        self.scheduler, self.seed = scheduler, seed
        trial = importlib.import_module("ray.tune.experiment").Trial
        self.trials = [trial("lockstep", stub=True, trial_id=str(number), config=values) for number, values in enumerate(configs)]
        for one in self.trials:
            scheduler.on_trial_add(self, one)
            one.set_status("PAUSED")

    def get_trials(self) -> list[Any]:
        return self.trials

    def get_live_trials(self) -> list[Any]:
        return [one for one in self.trials if not one.is_finished()]

    def hear(self, members: Sequence[Any], records: Sequence[Mapping[str, Any] | None], validations: int) -> None:
        """Tells the scheduler what has come of a generation; members have the values and the parent of their next job then."""
        ended = {one: record for one, record in zip(members, records, strict=True) if record is not None}
        for one in members:
            if one in ended:
                own = SimpleNamespace(checkpoint=ended[one]["directory"], metrics={})
                one.run_metadata.checkpoint_manager.register_checkpoint(own)
            else:
                one.set_status("ERROR")
        with drawing_from(self.seed, validations):
            for one, record in ended.items():
                result = {TIME: validations, self.scheduler.metric: record[GENERATION]["value"]}
                self.scheduler.on_trial_result(self, one, result)
        for one, record in ended.items():
            if one.checkpoint != record["directory"]:
                log.info(f"{record['directory'].name} is given up for a fork of {one.checkpoint.name}")


def ends_of_generations(config: DictConfig, scheduler: Mapping[str, Any]) -> list[int]:
    """Returns after how many validations each ends, but for the last, which ends as any training does. Raises ConfigError where
    they can't be counted."""
    trainer, interval = config.trainer, scheduler["perturbation_interval"]
    key, every = "hydra.sweeper.scheduler.perturbation_interval", trainer.get("check_val_every_n_epoch", 1)
    has_epochs = (trainer.max_epochs or -1) > 0 >= trainer.max_steps
    if not has_epochs or not every or trainer.get("val_check_interval") not in (None, 1.0):
        words = "generations are counted in validations at the ends of epochs; accepted is trainer.max_epochs, and no max_steps"
        raise config_error(key, interval, words)
    most = (trainer.max_epochs - 1) // every
    if not (rule := integer(1, most)).test(interval):
        raise config_error(key, interval, f"{rule.words}: training has {trainer.max_epochs} epochs")
    return [*range(interval, most + 1, interval)]
