"""The short training and its branches, with jobs that are planted losses, and steps of a made-up link."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from in_process import composed
from planted_answers import Quadratic

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.plan.answer import Candidate
from lockstep.extras.plan.answer import Plan as Answer
from lockstep.extras.plan.branches import Branch
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.record import content
from lockstep.extras.plan.search import Search, Settings
from lockstep.extras.plan.throughput import Throughput
from lockstep.extras.plan.training import Training
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.step_model import StepModel

SMALLEST, EPOCH, EPOCHS, NOISE, COUNTS = 16, 20_000, 10, 64, (1, 2, 4, 8)
LINK = StepModel(fixed=1e-3, per_sample=1e-4, latency=2e-4)


class Killed(Exception):
    pass


class Planted(Jobs):
    """done: the records of finished jobs, by their overrides, which are not run again; `kill_after`: so many that are run."""

    def __init__(
        self, done: dict[tuple[str, ...], dict[str, Any]], kill_after: int = 10**9, size: int = 400, noise: int = NOISE
    ) -> None:
        super().__init__(cast("Any", None), Path("plan"), False)
        self.done, self.kill_after, self.size, self.noise = done, kill_after, size, noise
        self.said: list[str] = []

    def launch(self, jobs: Sequence[list[str]]) -> list[dict[str, Any] | None]:
        self.launched += len(jobs)
        for job in jobs:
            if tuple(job) not in self.done:
                if self.kill_after == 0:
                    raise Killed
                self.kill_after -= 1
                self.done[tuple(job)] = self._run(dict(item.split("=", 1) for item in job))
        records = [self.done[tuple(job)] for job in jobs]
        self.records += records
        return [*records]

    def say(self, what: str) -> None:
        self.said.append(f"{what}; {self.left:.0f} samples are left")

    def _run(self, given: dict[str, str]) -> dict[str, Any]:
        multiple = int(given["datamodule.global_batch_size"]) // SMALLEST
        if "trainer.max_steps" in given:
            devices, steps = int(given["trainer.devices"]), int(given["trainer.max_steps"])
            seconds = LINK.seconds(devices, multiple * SMALLEST / devices) * (1 + 0.01 * (steps % 2))
            return {"seconds_per_step": seconds, "samples_per_epoch": EPOCH}
        at = [int(samples) for samples in given["callbacks.plan.at"].strip("[]").split(",")]
        points = [samples for samples in at if samples > 1]
        planted = Quadratic(noise=self.noise, smallest=SMALLEST, every=points[0], seed=0, size=self.size)
        rate = float(given["model.optimizer.lr"]) * multiple
        (curve,) = planted.measure([Branch(0, multiple, rate, int(given.get("seed", 0)))], len(points))
        losses = dict(zip(map(str, at), curve if at[0] == 1 else curve[1:], strict=True))
        return {"loss_at_samples": losses, "noise_scale": NOISE, "directory": Path(f"{len(self.done)}")}


def searched(jobs: Planted, **settings: Any) -> dict[str, Any]:
    cfg = composed("model=mlp", "model/optimizer=sgd", "trainer.accelerator=cpu", "datamodule.batch_size=16", run_dir=Path("run"))
    cfg.model.optimizer.lr = 0.2
    training = Training(cfg, Plan.from_config(cfg), ())
    throughput = Throughput(training, jobs, (1, 2, 4), None)
    jobs.total = throughput.epoch() * EPOCHS
    given = Settings(**{"largest": 4} | settings)
    jobs.budget = given.budget * jobs.total
    throughput.begin(24, 2)
    search = Search(training, given, jobs, throughput, COUNTS)
    known, fitted, plan = search.run()
    facts = {"batch": SMALLEST, "samples": {"training": jobs.total, "measured": jobs.spent}, "noise": search.noise_scales}
    return content("", (), plan, known, fitted, facts | {"jobs": jobs.launched})


def test_a_plan_killed_at_ten_moments_is_the_undisturbed_one() -> None:
    undisturbed = Planted({})
    expected = searched(undisturbed)
    assert expected["chosen"] is not None
    done: dict[tuple[str, ...], dict[str, Any]] = {}
    for kill in range(10):
        with pytest.raises(Killed):
            searched(Planted(done, (kill + 1) * len(undisturbed.done) // 11 - len(done)))
    last = Planted(done)
    assert searched(last) == expected
    assert done == undisturbed.done


def test_a_budget_of_less_than_a_branch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^plan.budget=0.002: leaves a branch less than 4 steps of twice the batch"):
        searched(Planted({}), budget=0.002)


def test_what_is_left_of_the_budget_goes_to_timings_while_they_are_least_certain() -> None:
    jobs = Planted({})
    asked: list[str] = []

    class Timings:
        def again(self) -> bool:
            asked.append("throughput")
            return len(asked) < 3

    search = Search(cast("Any", SimpleNamespace(factor=float)), Settings(), jobs, cast("Any", Timings()), COUNTS)
    jobs.total = 1.0
    for throughput, statistics in ((0.2, 0.01), (0.02, 0.01), (0.2, 0.3)):
        errors = {"throughput": throughput, "statistics": statistics}
        while search._time_again(planned(**errors)):
            pass
    assert len(asked) == 3
    assert jobs.said[-1].startswith("the speed-up was least certain by its throughput, 20%, of which more is measured; ")


def test_the_rates_of_larger_batches_follow_and_all_is_within_the_budget() -> None:
    jobs = Planted({})
    made = searched(jobs, budget=0.5)
    assert jobs.spent <= jobs.budget
    lengths = {one["batch"]: len(one["losses"]) for one in made["branches"]}
    assert lengths[64] >= lengths[32] > 1.1 * lengths[16]
    assert {row["from"] for row in made["critical_batches"]} == {0}


def test_what_is_left_of_the_budget_goes_to_other_seeds_of_the_batches_that_decide() -> None:
    jobs = Planted({}, size=12)
    made = searched(jobs, budget=1.0, largest=8)
    own = {(one["batch"], one["lr"]): len(one["losses"]) for one in made["branches"] if one["repeat"] == 0}
    assert all(len(one["losses"]) == own[one["batch"], one["lr"]] for one in made["branches"])
    repeats = {one["repeat"] for one in made["branches"]}
    assert len(repeats) > 1
    for repeat in repeats - {0}:
        batches = [one["batch"] for one in made["branches"] if one["repeat"] == repeat]
        assert SMALLEST in batches
        assert {batches.count(batch) for batch in batches if batch != SMALLEST} <= {2}  # two rates
    assert any("seed=1" in job for job in jobs.done)
    assert any(line.startswith("the choice is least certain by batch ") for line in jobs.said)
    assert jobs.said[-1].startswith("the rest of the budget is too small for another seed")
    assert jobs.spent <= jobs.budget


def test_a_sure_choice_is_compared_by_three_seeds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps have no cost of their own and samples of twice the batch are worth little, the smallest is chosen."""
    monkeypatch.setattr(sys.modules[__name__], "LINK", StepModel(per_sample=1e-3, latency=1e-7))
    jobs = Planted({}, noise=8)
    made = searched(jobs, budget=0.5, largest=4)
    assert made["rivals"] == []
    assert {one["repeat"] for one in made["branches"]} == {0, 1, 2}
    assert jobs.left > 0.05 * jobs.budget


def planned(**errors: float) -> Answer:
    one = Estimate(1.0)
    return Answer((Candidate(2, 1, one, one, one, "compute", errors, True),))
