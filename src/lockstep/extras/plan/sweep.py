"""`python train.py -m sweep=plan`: which jobs a plan is made of, and what follows from them.

First come short runs on each count of devices that this machine has, one at a time, for the throughput. Then a short training
in two stages, for the checkpoints, and branches of both. What is tried next follows from what the finished jobs have recorded: a
plan that was killed and is started again tries the same, and says the same.
"""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from lockstep import console
from lockstep.atomic_files import write_json
from lockstep.config.rules import TEXT, Rule, integer, number
from lockstep.errors import config_error
from lockstep.extras.plan.answer import make_plan, sentence
from lockstep.extras.plan.branches import Branch, Curve, explore
from lockstep.extras.plan.checkpoints import checkpoints_in
from lockstep.extras.plan.record import PLAN, content
from lockstep.extras.plan.training import DEVICES, Training
from lockstep.extras.report.analysis import gradient_bytes, measured_apart, read_all_reduce
from lockstep.extras.report.step_model import Timing, fit
from lockstep.launchers.stop_signals import Preempted
from lockstep.runs.validation import validated
from lockstep.sweeps.job_directory import read_record
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.settings import Keys
from lockstep.sweeps.states import FAILED, FINISHED
from lockstep.sweeps.sweep import Sweep

_TIMING = 0.25  # the most of the budget that goes to the throughput
_TRUNK = 0.3  # and of the rest to the training whose checkpoints branches begin from
_BRANCHES = 10  # of each checkpoint that the rest of it is to be enough for
_STAGES = 2
_LEAST_STEPS = 4  # of the largest batch in a branch
_LEAST_TIMED = 12  # steps
_POWER_OF_TWO = Rule("accepted is a power of two, 2 at least", lambda v: integer(2).test(v) and v & (v - 1) == 0)


@dataclass
class Settings(Keys):
    """plan.KEY=VALUE; conf/sweep/plan.yaml says what each means."""

    GROUP: ClassVar[str] = "plan"

    budget: Annotated[float, number(0.001, 10)] = 0.2
    run: Annotated[Any, TEXT.or_null()] = None
    largest: Annotated[int, _POWER_OF_TWO] = 16
    points: Annotated[int, integer(4)] = 6
    timed_steps: Annotated[int, integer(_LEAST_TIMED)] = 24
    repeats: Annotated[int, integer(1)] = 2
    micro_batch: Annotated[Any, integer(1).or_null()] = None
    monitor: Annotated[str, TEXT] = "val/loss"
    all_reduce: Annotated[Any, TEXT.or_null()] = None


class PlanSweep:
    """All jobs but those that time several devices have one device: a global batch is the same whatever it is divided over."""

    def __init__(self, config: DictConfig, loader: Any, launcher: Launcher, arguments: Sequence[str]) -> None:
        self.config, self.launcher = config, launcher
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        settings: Any = OmegaConf.to_container(config.get("plan") or OmegaConf.create({}), resolve=True)
        self.settings = Settings.from_config(settings)
        self.counts, constants = _parse(arguments, loader)
        self.training = _compose(config, loader, constants)
        self.spent = 0.0  # samples that jobs were given
        self.epoch = 0.0  # samples of one
        self.jobs = 0
        self.records: list[dict[str, Any]] = []
        self.checkpoints: dict[int, Path] = {}  # by the samples that they were trained on
        self.noise_scales: dict[int, float | None] = {}
        self.first: dict[int, float] = {}  # the loss at each checkpoint

    def run(self) -> None:
        self._check()
        if self.config.hydra.launcher.get("dry_run"):
            self._launch([self.training.timed(count, 1, self.settings.timed_steps) for count in self.timed_counts])
            return
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        try:
            self._make()
        except (KeyboardInterrupt, Preempted) as error:
            Sweep.interrupt(error.number if isinstance(error, Preempted) else signal.SIGINT)
            raise

    def _make(self) -> None:
        training = self.training
        fitted = fit(self._throughput(), self._given())
        known = explore(self._measure, self._starts(), training.lr, self.largest, training.factor)
        plan = make_plan(known, fitted, self.counts, training.batch, target=self._target())
        answer = sentence(plan, training.batch, self.spent / self.total, self.settings.monitor)
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

    @property
    def total(self) -> float:
        """The samples of one training."""
        return self.epoch * self.training.cfg.trainer.max_epochs

    @property
    def budget(self) -> float:
        return self.settings.budget * self.total

    def _check(self) -> None:
        self.training.check()
        if self.settings.all_reduce is not None:
            read_all_reduce(Path(self.settings.all_reduce))
        given = ",".join(map(str, self.counts))
        if self.counts[0] != 1:
            raise config_error(DEVICES, given, "accepted is 1 and others, 1,2,4 say")
        if len(self.timed_counts) < 2:
            here = self.training.devices_here
            words = f"two of them must be timed here, where there are {here} devices or cores; accepted is 1,2 and others"
            raise config_error(DEVICES, given, words)

    def _throughput(self) -> list[Timing]:
        """One job at a time: another one would take cores from it. The first one says how many samples an epoch has."""
        training, timings = self.training, []
        (first,) = self._launch([training.timed(1, 1, _LEAST_TIMED)])
        if first is None or not first.get("samples_per_epoch"):
            raise config_error(
                "sweep", "plan", f"its first job has failed, or does not say how long an epoch is; see {self.directory}"
            )
        self.epoch = float(first["samples_per_epoch"])
        points = [(count, multiple) for count in self.timed_counts for multiple in (1, 4)]
        each = sum(multiple * training.batch for _, multiple in points) * self.settings.repeats
        steps = max(_LEAST_TIMED, min(self.settings.timed_steps, int(_TIMING * self.budget / each)))
        for repeat in range(self.settings.repeats):  # which differ in the number of steps, so that each is a job of its own
            for count, multiple in points:
                (record,) = self._launch([training.timed(count, multiple, steps + repeat + 1)])
                self.spent += (steps + repeat + 1) * multiple * training.batch
                if record is not None and (seconds := record.get("seconds_per_step")):
                    timings.append(Timing(count, multiple * training.batch / count, seconds))
        self._say("the throughput is measured")
        return timings

    def _given(self) -> dict[str, float]:
        """What scripts/allreduce.py has measured of the link: two counts of devices alone do not tell latency from bandwidth."""
        file = self.settings.all_reduce
        return {} if file is None else measured_apart(read_all_reduce(Path(file)), gradient_bytes(self.records[0]))

    def _target(self) -> float | None:
        """The loss that the run which branches begin from has come to, if it has ended."""
        record = None if self.settings.run is None else read_record(Path(self.settings.run))
        return None if record is None else record["metrics"].get(self.settings.monitor)

    def _starts(self) -> list[int]:
        """Makes the checkpoints which branches begin from; returns the samples that they were trained on."""
        left = self.budget - self.spent
        unit = self._choose_length((1 - _TRUNK) * left if self.settings.run is None else left)
        if self.settings.run is not None:
            self.checkpoints = checkpoints_in(Path(self.settings.run), self.total)
            return [*self.checkpoints]
        stage = max(1, int(_TRUNK * left / _STAGES) // unit) * unit
        for samples in range(stage, (_STAGES + 1) * stage, stage):
            (record,) = self._launch([self._short(1, self.training.lr, [samples], self.checkpoints.get(samples - stage))])
            self.spent += stage
            if record is None:
                raise config_error("sweep", "plan", f"the training that branches begin from has failed; see {self.directory}")
            self.checkpoints[samples] = record["directory"] / "checkpoints" / "last.ckpt"
            self.noise_scales[samples] = record.get("noise_scale")
        self._say(f"{_STAGES} checkpoints are made")
        return [*self.checkpoints]

    def _choose_length(self, left: float) -> int:
        """Sets the samples of a branch and its points, all between whole steps of the largest batch, which becomes smaller where
        these would be too few. Returns the samples of such a step."""
        self.largest = self.settings.largest
        while self.largest > 1:
            unit = self.largest * self.training.batch
            self.points = min(self.settings.points, int(left / (_STAGES * _BRANCHES)) // unit)
            if self.points >= _LEAST_STEPS and self.largest <= self.training.largest_by_the_rule:
                self.length = int(left / (_STAGES * _BRANCHES)) // (self.points * unit) * self.points * unit
                return unit
            self.largest //= 2
        words = f"leaves a branch less than {_LEAST_STEPS} steps of twice the batch; accepted is more, or a longer training"
        raise config_error("plan.budget", self.settings.budget, words)

    def _measure(self, branches: Sequence[Branch]) -> list[Curve | None]:
        if self.spent + len(branches) * self.length > self.budget:
            self._say("the rest of the budget is too small for another branch")
            return [None] * len(branches)
        self.spent += len(branches) * self.length
        records = self._launch([self._branch(one) for one in branches])
        curves: list[Curve | None] = [self._curve(one, record) for one, record in zip(branches, records, strict=True)]
        first = branches[0]
        rates = ", ".join(f"{one.rate:.2g}" for one in branches)
        self._say(f"batch {first.multiple * self.training.batch} is measured at lr {rates}, from {first.start} samples on")
        return curves

    def _branch(self, branch: Branch) -> list[str]:
        at = [branch.start + 1] if branch.multiple == 1 else []  # after the first step: the loss at the checkpoint
        at += [branch.start + self.length * point // self.points for point in range(1, self.points + 1)]
        job = self._short(branch.multiple, branch.rate, at, self.checkpoints[branch.start])
        return [*job, "callbacks.noise_scale=null"]

    def _short(self, multiple: int, rate: float, at: Sequence[int], checkpoint: Path | None) -> list[str]:
        return self.training.shortened(multiple, rate, at, self.settings.micro_batch, checkpoint)

    def _curve(self, branch: Branch, record: dict[str, Any] | None) -> Curve:
        losses = [] if record is None else [*record["loss_at_samples"].values()]
        numbers = [math.inf if loss is None else float(loss) for loss in losses] or [math.inf] * self.points
        if branch.multiple == 1 and record is not None:
            self.first.setdefault(branch.start, numbers.pop(0))
        if min(numbers) <= 0:
            raise config_error("plan.monitor", self.settings.monitor, f"has been {min(numbers):g}; accepted is a loss above 0")
        return [self.first.get(branch.start, math.inf), *numbers]

    def _launch(self, jobs: Sequence[list[str]]) -> list[dict[str, Any] | None]:
        """Returns the records of jobs, with their directories; None of one that has failed."""
        self.jobs += len(jobs)
        Sweep.expect(self.jobs)
        returned = self.launcher.launch(jobs, initial_job_idx=self.jobs)
        if self.config.hydra.launcher.get("dry_run"):
            return [None] * len(jobs)
        states = {job["directory"]: job["status"] for job in Manifest(self.directory).jobs.values()}
        folders = [Path(str(one.working_dir)) for one in returned]
        if any(states[folder.name] not in (FINISHED, FAILED) for folder in folders):
            raise KeyboardInterrupt  # a job was interrupted, though not the sweep: the same command continues both
        records = [read_record(folder) if states[folder.name] == FINISHED else None for folder in folders]
        self.records += [record for record in records if record is not None]
        return [None if one is None else one | {"directory": folder} for one, folder in zip(records, folders, strict=True)]

    def _facts(self) -> dict[str, Any]:
        """What the plan's file says beside the answer."""
        return {
            "batch": self.training.batch,
            "rule": self.training.rule[0],
            "timed_devices": self.timed_counts,
            "samples": {"training": self.total, "measured": self.spent, "of_a_branch": self.length},
            "device_seconds": sum(record.get("wall_time", 0.0) * record.get("world_size", 1) for record in self.records),
            "noise_scale": self.noise_scales,
        }

    def _say(self, what: str) -> None:
        console.say(f"plan: {what}; {self.spent / self.total:.1%} of a training is spent, of {self.settings.budget:.0%}")


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
    full = loader.load_sweep_config(config, [*constants, f"{DEVICES}=1"])
    HydraConfig.instance().set_config(full)
    try:
        return Training(*validated(full, unfilled=True), constants)
    finally:
        HydraConfig.instance().set_config(config)
