"""The short training, its branches, and the plan that follows: what is measured next follows from what was measured before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from lockstep.config.rules import TEXT, Rule, integer, number
from lockstep.errors import config_error
from lockstep.extras.plan.answer import THROUGHPUT, Plan, make_plan
from lockstep.extras.plan.branches import WHOLE, Branch, Branches, Curve, explore, extend_longest
from lockstep.extras.plan.checkpoints import checkpoints_in
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.link import MEASURE
from lockstep.extras.plan.throughput import LEAST_TIMED, Throughput
from lockstep.extras.plan.training import Training
from lockstep.extras.report.step_model import Fit
from lockstep.sweeps.job_directory import read_record
from lockstep.sweeps.settings import Keys

_TRUNK = 0.3  # of the budget that timings leave, to the training whose checkpoints branches begin from
_BRANCHES = 10  # of each checkpoint that the rest of it is to be enough for
STAGES = 2  # of the short training
_LEAST_STEPS = 4  # of the largest batch in a branch
_SURE = 0.03  # a standard error of the speed-up that needs no more measurements
_POWER_OF_TWO = Rule("accepted is a power of two, 2 at least", lambda v: integer(2).test(v) and v & (v - 1) == 0)


@dataclass
class Settings(Keys):
    """plan.KEY=VALUE; conf/sweep/plan.yaml says what each means."""

    GROUP: ClassVar[str] = "plan"

    budget: Annotated[float, number(0.001, 10)] = 0.2
    run: Annotated[Any, TEXT.or_null()] = None
    largest: Annotated[int, _POWER_OF_TWO] = 16
    points: Annotated[int, integer(4)] = 6
    timed_steps: Annotated[int, integer(LEAST_TIMED)] = 24
    repeats: Annotated[int, integer(1)] = 2
    micro_batch: Annotated[Any, integer(1).or_null()] = None
    monitor: Annotated[str, TEXT] = "val/loss"
    all_reduce: Annotated[Any, TEXT.or_null()] = MEASURE


class Search:
    """All jobs but those that time several devices have one device: a global batch is the same whatever it is divided over."""

    def __init__(self, training: Training, settings: Settings, jobs: Jobs, throughput: Throughput, counts: Sequence[int]) -> None:
        self.training, self.settings, self.jobs, self.throughput, self.counts = training, settings, jobs, throughput, counts
        self.checkpoints: dict[int, Path] = {}  # by the samples that they were trained on
        self.noise_scales: dict[int, float | None] = {}
        self.first: dict[int, float] = {}  # the loss at each checkpoint
        self.curves: dict[Branch, list[float]] = {}
        self.ends: dict[Branch, Path] = {}  # the checkpoint that a branch has come to

    def run(self) -> tuple[Branches, Fit | None, Plan]:
        known = explore(self._measure, self._starts(), self.training.lr, self.largest, self.training.factor)
        fitted, plan = self._planned(known)
        while self._learn_more(known, plan):
            fitted, plan = self._planned(known)
        return known, fitted, plan

    def _planned(self, known: Branches) -> tuple[Fit | None, Plan]:
        fitted = self.throughput.fit
        return fitted, make_plan(known, fitted, self.counts, self.training.batch, target=self._target())

    def _learn_more(self, known: Branches, plan: Plan) -> bool:
        """Spends some of what is left of the budget where the answer is least certain, if it is not sure. False: no more is
        measured."""
        for error, cause in plan.errors:
            more = self.throughput.again if cause == THROUGHPUT else partial(extend_longest, known, self._measure)
            if error > _SURE and more():
                self.jobs.say(f"the speed-up was least certain by its {cause}, {error:.0%}, of which more is measured")
                return True
        return False

    def _target(self) -> float | None:
        """The loss that the run which branches begin from has come to, if it has ended."""
        record = None if self.settings.run is None else read_record(Path(self.settings.run))
        return None if record is None else record["metrics"].get(self.settings.monitor)

    def _starts(self) -> list[int]:
        """Makes the checkpoints which branches begin from; returns the samples that they were trained on."""
        left = self.jobs.left
        unit = self._choose_length((1 - _TRUNK) * left if self.settings.run is None else left)
        if self.settings.run is not None:
            self.checkpoints = checkpoints_in(Path(self.settings.run), self.jobs.total)
            return [*self.checkpoints]
        stage = max(1, int(_TRUNK * left / STAGES) // unit) * unit
        for samples in range(stage, (STAGES + 1) * stage, stage):
            (record,) = self.jobs.launch([self._short(1, self.training.lr, [samples], self.checkpoints.get(samples - stage))])
            self.jobs.spent += stage
            if record is None:
                raise config_error("sweep", "plan", f"the short training has failed; see {self.jobs.directory}")
            self.checkpoints[samples] = record["directory"] / "checkpoints" / "last.ckpt"
            self.noise_scales[samples] = record.get("noise_scale")
        self.jobs.say(f"{STAGES} checkpoints are made")
        return [*self.checkpoints]

    def _choose_length(self, left: float) -> int:
        """Sets the samples of a branch and its points, all between whole steps of the largest batch, which becomes smaller where
        these would be too few. Returns the samples of such a step."""
        self.largest = self.settings.largest
        while self.largest > 1:
            unit = self.largest * self.training.batch
            self.points = min(self.settings.points, int(left / (STAGES * _BRANCHES)) // unit)
            if self.points >= _LEAST_STEPS and self.largest <= self.training.largest_by_the_rule:
                self.length = int(left / (STAGES * _BRANCHES)) // (self.points * unit) * self.points * unit
                return unit
            self.largest //= 2
        words = f"leaves a branch less than {_LEAST_STEPS} steps of twice the batch; accepted is more, or a longer training"
        raise config_error("plan.budget", self.settings.budget, words)

    def _measure(self, branches: Sequence[Branch], halves: int) -> list[Curve | None]:
        halves = halves if self._has_epochs_for(WHOLE) else max(halves, WHOLE)
        begun = {one: len(self.curves.get(one, [0.0])) - 1 for one in branches}  # points that there are
        samples = sum(self._samples(self._points(halves) - points) for points in begun.values())
        ends = max(branches, key=lambda one: one.start).start + self._samples(self._points(halves))
        if samples and (
            samples > self.jobs.left or ends > self.jobs.total or (halves > WHOLE and not self._has_epochs_for(halves))
        ):
            self.jobs.say("the rest of the budget is too small for another branch")
            return [None] * len(branches)
        if not samples:
            return [self.curves[one] for one in branches]
        self.jobs.spent += samples
        records = self.jobs.launch([self._branch(one, begun[one], self._points(halves)) for one in branches])
        curves: list[Curve | None] = [self._curve(one, halves, record) for one, record in zip(branches, records, strict=True)]
        for start, multiple in sorted({(one.start, one.multiple) for one in branches}):
            rates = ", ".join(f"{one.rate:.2g}" for one in branches if one.multiple == multiple)
            batch = multiple * self.training.batch
            self.jobs.say(f"batch {batch} at lr {rates}, from {start} samples on, is {halves / 2:g} of a branch long")
        return curves

    def _has_epochs_for(self, halves: int) -> bool:
        """Whether a branch can go on half by half so far, each by a job of its own: Lightning counts an epoch as over where
        training ends, so that each job in the chain begins an epoch, and the training has only so many. A branch of one job is
        possible where this one is not."""
        longest = max(self.checkpoints) + self._samples(self._points(halves))
        return (
            halves + STAGES + longest / self.jobs.total * self.training.cfg.trainer.max_epochs
            < self.training.cfg.trainer.max_epochs
        )

    def _points(self, halves: int) -> int:
        return self.points * halves // 2

    def _samples(self, points: int) -> int:
        return self.length * points // self.points

    def _branch(self, branch: Branch, begun: int, points: int) -> list[str]:
        at = [branch.start + 1] if branch.multiple == 1 and not begun else []  # after the first step: the loss at the checkpoint
        at += [branch.start + self._samples(point) for point in range(begun + 1, points + 1)]
        job = self._short(branch.multiple, branch.rate, at, self.ends.get(branch, self.checkpoints[branch.start]))
        return [*job, "callbacks.noise_scale=null"]

    def _short(self, multiple: int, rate: float, at: Sequence[int], checkpoint: Path | None) -> list[str]:
        return self.training.shortened(multiple, rate, at, self.settings.micro_batch, checkpoint)

    def _curve(self, branch: Branch, halves: int, record: dict[str, Any] | None) -> Curve:
        losses = [] if record is None else [*record["loss_at_samples"].values()]
        numbers = [math.inf if loss is None else float(loss) for loss in losses]
        if branch.multiple == 1 and numbers and branch not in self.curves:
            self.first.setdefault(branch.start, numbers.pop(0))
        if min(numbers, default=1.0) <= 0:
            raise config_error("plan.monitor", self.settings.monitor, f"has been {min(numbers):g}; accepted is a loss above 0")
        curve = [*self.curves.get(branch, [self.first.get(branch.start, math.inf)]), *numbers]
        self.curves[branch] = curve + [math.inf] * (1 + self._points(halves) - len(curve))
        if record is not None:
            self.ends[branch] = record["directory"] / "checkpoints" / "last.ckpt"
        return self.curves[branch]
