"""Timings of a step on each count of devices that this machine has, and the model that is fitted to them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from lockstep.config.plan import AUTO
from lockstep.errors import config_error
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.link import MEASURE, measured_link
from lockstep.extras.plan.training import Training
from lockstep.extras.report.analysis import gradient_bytes, measured_apart, read_all_reduce
from lockstep.extras.report.step_model import Fit, Timing, fit

LEAST_TIMED = 12  # steps
_SHARE = 0.25  # the most of the budget that timings may take before anything else is known
_MOST = 6  # times that a point is timed
_SEARCHED = 2  # steps after the search


class Throughput:
    """counts: of devices, those that are here; steps: of a timing; all_reduce: as plan.all_reduce."""

    def __init__(self, training: Training, jobs: Jobs, counts: Sequence[int], all_reduce: str | None) -> None:
        self.training, self.jobs, self.counts, self.all_reduce = training, jobs, counts, all_reduce
        self.timings: list[Timing] = []
        self.repeats = 0
        self.steps = LEAST_TIMED

    def search_size(self, largest: int) -> None:
        """Finds how many samples a device can have at once, by a first short job with the largest batch."""
        while largest > self.training.largest_by_the_rule:
            largest //= 2
        (first,) = self.jobs.launch([self.training.timed(1, largest, _SEARCHED)])
        if first is None:
            words = f"its first job, which searches for it, has failed; see {self.jobs.directory}"
            raise config_error("datamodule.batch_size", AUTO, words)
        self.training.take_size(first["batch_size"])

    def epoch(self) -> float:
        """The samples of one, by a first short job."""
        (first,) = self.jobs.launch([self.training.timed(1, 1, LEAST_TIMED)])
        if first is None or not first.get("samples_per_epoch"):
            words = f"its first job has failed, or does not say how long an epoch is; see {self.jobs.directory}"
            raise config_error("sweep", "plan", words)
        return float(first["samples_per_epoch"])

    def least(self, repeats: int) -> float:
        """Returns the samples that `begin` takes at least."""
        return sum(self._samples(LEAST_TIMED + number) for number in range(1, repeats + 1))

    def begin(self, steps: int, repeats: int) -> None:
        """Times each point `repeats` times, in so many steps, or in fewer where the budget is small."""
        self.steps = max(LEAST_TIMED, min(steps, int(_SHARE * self.jobs.budget / (self._samples(1) * repeats))))
        for _ in range(repeats):
            self._time()
        self.jobs.say("the throughput is measured")

    def again(self) -> bool:
        """Times each point once more. False: often enough, or the budget is spent."""
        if self.repeats >= _MOST or self._samples(self.steps + self.repeats + 1) > self.jobs.left:
            return False
        self._time()
        return True

    @property
    def fit(self) -> Fit | None:
        return fit(self.timings, measured_apart(self._link, gradient_bytes(self.jobs.records[0])))

    @property
    def _points(self) -> list[tuple[int, int]]:
        return [(count, multiple) for count in self.counts for multiple in (1, 4)]

    def _samples(self, steps: int) -> int:
        return sum(multiple * self.training.batch * steps for _, multiple in self._points)

    def _time(self) -> None:
        """One job at a time: another one would take cores from it. Repeats differ in the number of steps, so that each is a job
        of its own."""
        self.repeats += 1
        for count, multiple in self._points:
            (record,) = self.jobs.launch([self.training.timed(count, multiple, self.steps + self.repeats)])
            self.jobs.spent += (self.steps + self.repeats) * multiple * self.training.batch
            if record is not None and (seconds := record.get("seconds_per_step")):
                self.timings.append(Timing(count, multiple * self.training.batch / count, seconds))

    @cached_property
    def _link(self) -> dict[str, float]:
        """Latency and bandwidth, where they are measured apart."""
        if self.all_reduce == MEASURE:
            backend = "nccl" if self.training.plan.accelerator == "gpu" else "gloo"
            return measured_link(self.jobs.directory, self.counts, backend)
        return {} if self.all_reduce is None else read_all_reduce(Path(self.all_reduce))
