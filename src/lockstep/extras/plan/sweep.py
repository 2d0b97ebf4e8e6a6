"""`python train.py -m sweep=plan`: which jobs a plan is made of, and what follows from them.

First come short runs on each count of devices that this machine has, one at a time, for the throughput. Then short trainings at
several batches and rates, and longer ones at the best. What is tried next follows from what the finished jobs have recorded: a
plan that was killed and is started again tries the same, and says the same.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import write_json
from lockstep.errors import config_error
from lockstep.extras.plan.answer import sentence
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.link import MEASURE
from lockstep.extras.plan.record import PLAN, content
from lockstep.extras.plan.search import LARGEST_BUDGET, Search, Settings
from lockstep.extras.plan.throughput import Throughput
from lockstep.extras.plan.training import DEVICES, Training
from lockstep.extras.report.analysis import read_all_reduce
from lockstep.runs.validation import validated
from lockstep.sweeps.composition import JobConfigs
from lockstep.sweeps.sweep import Sweep


class PlanSweep:
    """From the command line to the sentence; search.py says what is measured."""

    def __init__(self, config: DictConfig, loader: Any, launcher: Launcher, arguments: Sequence[str]) -> None:
        self.config = config
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        settings: Any = OmegaConf.to_container(config.get("plan") or OmegaConf.create({}), resolve=True)
        self.settings = Settings.from_config(settings)
        self.counts, constants = _parse(arguments, loader)
        self.training = _compose(config, loader, constants)
        self.jobs = Jobs(launcher, self.directory, bool(config.hydra.launcher.get("dry_run")))
        self.throughput = Throughput(self.training, self.jobs, self.timed_counts, self.settings.all_reduce)
        self.search = Search(self.training, self.settings, self.jobs, self.throughput, self.counts)

    def run(self) -> None:
        self._check()
        if self.jobs.is_dry:
            self.jobs.launch([self.training.timed(count, 1, self.settings.timed_steps) for count in self.timed_counts])
            return
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        with Sweep.answering():
            self._make()

    def _make(self) -> None:
        training = self.training
        if training.is_searched:
            self.throughput.search_size(self.settings.largest)
        self.jobs.total = self.throughput.epoch() * training.cfg.trainer.max_epochs
        self.jobs.budget = self.settings.budget * self.jobs.total
        self._check_budget()
        self.throughput.begin(self.settings.timed_steps, self.settings.repeats)
        known, fitted, plan = self.search.run()
        answer = sentence(plan, training.batch, self.jobs.spent / self.jobs.total, self.settings.monitor)
        overrides = []
        if plan.chosen is not None and plan.rate is not None:
            overrides = [
                f"{DEVICES}={plan.chosen.devices}",
                *training.with_batch(plan.chosen.multiple, float(f"{plan.rate:.3g}")),
            ]
        write_json(self.directory / PLAN, content(answer, overrides, plan, known, fitted, self._facts()))
        print(f"\n{answer}", *([f"Follow it: {' '.join(overrides)}"] if overrides else []), sep="\n", flush=True)

    @property
    def timed_counts(self) -> list[int]:
        return [count for count in self.counts if count <= self.training.devices_here]

    def _check(self) -> None:
        self.training.check()
        if self.settings.all_reduce not in (None, MEASURE):
            read_all_reduce(Path(self.settings.all_reduce))
        if (run := self.settings.run) is not None and not any(Path(run).glob("checkpoints/*.ckpt")):
            raise config_error("plan.run", run, "has no checkpoints; accepted is the directory of a run")
        given = ",".join(map(str, self.counts))
        if self.counts[:1] != [1]:
            raise config_error(DEVICES, given, "accepted is 1 and others, 1,2,4 say")
        if len(self.timed_counts) < 2:
            here = self.training.devices_here
            words = f"two of them must be timed here, where there are {here} devices or cores; accepted is 1,2 and others"
            raise config_error(DEVICES, given, words)

    def _check_budget(self) -> None:
        """Raises ConfigError for one that could not pay for an answer, before it is spent."""
        least = (self.throughput.least(self.settings.repeats) + self.search.least) / self.jobs.total
        if self.settings.budget < least:
            more = f"{math.ceil(10 * least) / 10:.1f} or more, or " if least <= LARGEST_BUDGET else ""
            words = f"timings and the shortest branches take {least:.2g} times the training's samples; accepted is {more}"
            raise config_error("plan.budget", self.settings.budget, f"{words}a longer training")

    def _facts(self) -> dict[str, Any]:
        """What the plan's file says beside the answer."""
        return {
            "batch": self.training.batch,
            "jobs": self.jobs.launched,
            "rule": self.training.rule[0],
            "timed_devices": self.timed_counts,
            "samples": {"training": self.jobs.total, "measured": self.jobs.spent, "of_a_point": self.search.every},
            "device_seconds": sum(record.get("wall_time", 0.0) * record.get("world_size", 1) for record in self.jobs.records),
            "noise_scale": self.search.noise_scales,
        }


def _parse(arguments: Sequence[str], loader: Any) -> tuple[list[int], tuple[str, ...]]:
    """The counts of devices, and the other overrides; the last override of a key counts."""
    last = {one.get_key_element(): one for one in OverridesParser.create(loader).parse_overrides([*arguments])}
    for key, one in last.items():
        if one.is_sweep_override() and key != DEVICES:
            words = "a plan finds the batch and the rate itself; accepted is one value"
            raise config_error(key, str(one.input_line).partition("=")[2], words)
    given = last.pop(DEVICES)
    values: Any = given.sweep_string_iterator() if given.is_sweep_override() else [given.value()]
    counts = sorted({int(value) if str(value).isdigit() else 0 for value in values})
    return counts, tuple(f"{key}={one.get_value_element_as_str()}" for key, one in last.items())


def _compose(config: DictConfig, loader: Any, constants: tuple[str, ...]) -> Training:
    full = JobConfigs(config, loader).compose([*constants, f"{DEVICES}=1"])
    HydraConfig.instance().set_config(full)
    try:
        return Training(*validated(full), constants)
    finally:
        HydraConfig.instance().set_config(config)
