"""The branches, and the plan that follows: what is measured next follows from what was measured before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from lockstep.config.rules import TEXT, Rule, integer, number
from lockstep.errors import config_error
from lockstep.extras.plan.answer import THROUGHPUT, Plan, make_plan
from lockstep.extras.plan.branches import LONGEST, Branch, Branches, Curve, at_the_rule, explore, extend_each
from lockstep.extras.plan.checkpoints import checkpoints_in
from lockstep.extras.plan.critical import worth
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.link import MEASURE
from lockstep.extras.plan.surface import fitted_surface
from lockstep.extras.plan.throughput import LEAST_TIMED, Throughput
from lockstep.extras.plan.training import Training
from lockstep.extras.report.step_model import Fit, Workload
from lockstep.sweeps.job_directory import read_record
from lockstep.sweeps.settings import Keys

LARGEST_BUDGET = 20  # trainings
_SHORT = 0.1  # of the budget that timings leave, to short branches of the smallest batch
_RATES = 5  # that it is to be enough for
_SHORTEST = 0.1  # of a training: no short branch need be longer
_LEAST_STEPS = 4  # of the largest batch in a short branch
_SURE = 0.03  # a standard error of the speed-up that needs no more measurements
_SEEDS = 3  # of a sure choice, if the budget is enough for them
_KEPT = 0.25  # of the budget, for more timings and seeds
_POWER_OF_TWO = Rule("accepted is a power of two, 2 at least", lambda v: integer(2).test(v) and v & (v - 1) == 0)


@dataclass
class Settings(Keys):
    """plan.KEY=VALUE; conf/sweep/plan.yaml says what each means."""

    GROUP: ClassVar[str] = "plan"

    budget: Annotated[float, number(0.001, LARGEST_BUDGET)] = 0.2
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
        self.noise_scales: dict[int, float | None] = {}  # of the smallest batch, by the samples that it was trained on
        self.known = Branches(factor=training.factor)

    def run(self) -> tuple[Branches, Fit | None, Plan]:
        self._choose_length()
        if self.settings.run is not None:
            self.checkpoints = checkpoints_in(Path(self.settings.run), self.jobs.total)
        known, training = self.known, self.training
        explore(known, self._measure, worth, training.lr, self.largest, self.points, self._long, self._pays)
        for start in self.checkpoints:
            at_the_rule(known, self._measure, worth, start, training.lr, self.largest, self._long(start))
        self._settle()
        return known, self.throughput.fit, self._plan()

    @property
    def least(self) -> float:
        """Returns the samples that the shortest branches take at least, of a batch and of one twice as large."""
        return _LEAST_STEPS * 2 * self.training.batch * _RATES / _SHORT

    def _plan(self) -> Plan:
        return make_plan(self.known, self.throughput.fit, self.counts, self.training.batch, target=self._target())

    def _pays(self, multiple: int, needs: float) -> bool:
        """Is a batch on any count of devices so much faster than one of half of it?"""
        fit, works = self.throughput.fit, [Workload(global_batch=m * self.training.batch) for m in (multiple // 2, multiple)]
        speeds = [[work.throughput(fit.model, n) for work in works] for n in self.counts] if fit else []
        return not fit or any(larger > needs * half for half, larger in speeds)

    def _settle(self) -> None:
        """Spends what is left of the budget where the answer is least certain."""
        plan = self._plan()
        while self._time_again(plan) or self._repeat(plan):
            plan = self._plan()

    def _time_again(self, plan: Plan) -> bool:
        """More timings, if the speed-up is less certain by them than by the branches, and not sure."""
        errors = plan.errors
        if not errors or errors[0][1] != THROUGHPUT or errors[0][0] <= _SURE or not self.throughput.again():
            return False
        self.jobs.say(f"the speed-up was least certain by its {THROUGHPUT}, {errors[0][0]:.0%}, of which more is measured")
        return True

    def _repeat(self, plan: Plan) -> bool:
        """One more seed of the batches that decide between the choice and another one, or where that is too much of the chosen
        one alone: until there are some, and more if other draws of the noise would choose otherwise. From a checkpoint on,
        another seed would have the same beginning."""
        is_enough = self.checkpoints or (not plan.is_doubtful and len(self.known.repeats(0)) >= _SEEDS)
        chosen = [plan.chosen.multiple] if plan.chosen else []
        wanted = [] if is_enough else [batches for batches in (plan.deciding, chosen) if batches]
        for multiples in wanted:
            surface = fitted_surface(self.known, 0)
            branches = self.known.with_another_seed({multiple: surface.best_rates(multiple)[:2] for multiple in multiples})
            if sum(branches.values()) * self.every <= self.jobs.left:
                batches = " and ".join(str(multiple * self.training.batch) for multiple in multiples)
                self.jobs.say(f"the choice is least certain by batch {batches}, of which another seed is trained")
                return extend_each(self.known, self._measure, branches)
        if wanted:
            self.jobs.say("the rest of the budget is too small for another seed")
        return False

    def _target(self) -> float | None:
        """The loss that the run which branches begin from has come to, if it has ended."""
        record = None if self.settings.run is None else read_record(Path(self.settings.run))
        return None if record is None else record["metrics"].get(self.settings.monitor)

    def _choose_length(self) -> None:
        """Sets the points of a short branch and the samples between them, in whole steps of the largest batch, which becomes
        smaller where these would be too few."""
        self.largest = self.settings.largest
        while self.largest > 1:
            unit = self.largest * self.training.batch
            steps = int(min(_SHORT * self.jobs.left / _RATES, _SHORTEST * self.jobs.total)) // unit
            self.points = min(self.settings.points, steps)
            if self.points >= _LEAST_STEPS and self.largest <= self.training.largest_by_the_rule:
                self.every = self.known.every = steps // self.points * unit
                return
            self.largest //= 2
        words = f"leaves a branch less than {_LEAST_STEPS} steps of twice the batch; accepted is more, or a longer training"
        raise config_error("plan.budget", self.settings.budget, words)

    @property
    def _multiples(self) -> list[int]:
        return [2**power for power in range(self.largest.bit_length())]

    def _long(self, start: int = 0) -> int:
        """The points of the smallest batch's longest branch, by the rest of the training and by this start's share of the budget.
        From the first step on there are four rates of it, and about two of larger batches, of twice as many samples."""
        coming = [one for one in (0, *self.checkpoints) if one >= start]
        larger = len(self._multiples) - 1
        in_all = 4 + 4 * larger if start == 0 else 1 + LONGEST * larger
        left = max(0.0, self.jobs.left - _KEPT * self.jobs.budget) / len(coming) / in_all
        return int(min(left, (self._epochs_end - start) / LONGEST) / self.every)

    @property
    def _epochs_end(self) -> float:
        """The samples of a training in whole steps of the largest batch."""
        epochs, unit = self.training.cfg.trainer.max_epochs, self.largest * self.training.batch
        return epochs * (self.jobs.total / epochs // unit * unit)

    def _measure(self, branches: Sequence[Branch], points: int) -> list[Curve | None]:
        missing = [one for one in branches if len(self.known.curves.get(one, [])) <= points]
        samples = points * self.every
        is_too_long = any(one.start + samples > self._epochs_end for one in missing)
        if len(missing) * samples > self.jobs.left or is_too_long or points < _LEAST_STEPS:
            self.jobs.say("the rest of the budget is too small for another branch")
            return [None] * len(branches)
        self.jobs.spent += len(missing) * samples
        records = self.jobs.launch([self._branch(one, points) for one in missing])
        for one, record in zip(missing, records, strict=True):
            self.known.curves[one] = self._curve(one, points, record)
        for multiple in sorted({one.multiple for one in missing}):
            rates = ", ".join(f"{one.rate:.2g}" for one in missing if one.multiple == multiple)
            at = f"from {missing[0].start} to {missing[0].start + samples} samples"
            self.jobs.say(f"batch {multiple * self.training.batch} at lr {rates} was trained {at}")
        return [self.known.curves[one] for one in branches]

    def _branch(self, branch: Branch, points: int) -> list[str]:
        """A job that goes from the branch's beginning to its end: one that becomes longer begins anew, for Lightning counts an
        epoch as over where training ends, and the training has only so many."""
        at = [branch.start + 1] if branch.multiple == 1 else []  # after the first step: the loss at the beginning
        at += [branch.start + point * self.every for point in range(1, points + 1)]
        checkpoint = self.checkpoints[branch.start] if branch.start else None
        job = self.training.shortened(branch.multiple, branch.rate, at, self.settings.micro_batch, checkpoint)
        seed = [f"seed={(self.training.cfg.seed + branch.repeat) % 2**32}"] if branch.repeat else []
        return [*job, *seed, *([] if self._has_noise_scale(branch) else ["callbacks.noise_scale=null"])]

    def _has_noise_scale(self, branch: Branch) -> bool:
        return branch.multiple == 1 and branch.repeat == 0

    def _curve(self, branch: Branch, points: int, record: dict[str, Any] | None) -> list[float]:
        losses = [] if record is None else [*record["loss_at_samples"].values()]
        numbers = [math.inf if loss is None or not math.isfinite(loss) else float(loss) for loss in losses]
        if min(numbers, default=1.0) <= 0:
            raise config_error("plan.monitor", self.settings.monitor, f"has been {min(numbers):g}; accepted is a loss above 0")
        if branch.multiple > 1:
            same = (branch.start, branch.repeat)
            numbers.insert(0, min(curve[0] for one, curve in self.known.curves.items() if (one.start, one.repeat) == same))
        elif record is not None and self._has_noise_scale(branch):
            self.noise_scales[branch.start + points * self.every] = record.get("noise_scale")
        return numbers + [math.inf] * (1 + points - len(numbers))
