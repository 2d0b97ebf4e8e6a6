"""A search by Ray Tune whose launcher trains nothing: what it asks, and what its scheduler answers."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_sweep import leave
from omegaconf import OmegaConf

from lockstep.errors import ConfigError, NamedFailure
from lockstep.extras.ray_cluster.reports import REPORTS, TUNE, report
from lockstep.extras.ray_cluster.tune import Settings, TuneSweep
from lockstep.sweeps.composition import JobConfigs
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.sweep import RefusedJob
from lockstep.sweeps.sweep_jobs import SweepJobs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'")
LR = "model.optimizer.lr=tag(log,interval(1e-4,1e-1))"
Outcome = float | str  # the metric, or how the job ended that has none
ASHA = {"_target_": "ray.tune.schedulers.ASHAScheduler", "max_t": 100, "reduction_factor": 2}


class Launcher:
    """Leaves of each job what a launcher would. `outcome` says what comes of a point; `most`: jobs after which it is killed."""

    def __init__(self, folder: Path, outcome: Callable[[dict[str, str]], Outcome], most: int = 1000) -> None:
        self.folder, self.outcome, self.most = folder, outcome, most
        self.trained: list[tuple[str, ...]] = []

    def launch(self, job_overrides: Sequence[tuple[str, ...]], initial_job_idx: int) -> list[Any]:
        outcomes = [self.outcome(dict(item.split("=", 1) for item in overrides)) for overrides in job_overrides]
        if "refused" in outcomes:
            raise RefusedJob("no such thing", outcomes.index("refused"))
        return [self._run(overrides, outcome) for overrides, outcome in zip(job_overrides, outcomes, strict=True)]

    def _run(self, overrides: tuple[str, ...], outcome: Outcome) -> Any:
        if len(self.trained) == self.most:
            raise SystemExit(137)
        key = f"{abs(hash(overrides)):012x}"[:12]
        job = Job(key, overrides, self.folder / key, "cpu", 1, 1, "val/acc", "max", ("python",), {"datamodule": {}})
        sweep_jobs = SweepJobs(self.folder)
        if sweep_jobs.register([job]):
            self.trained.append(overrides)
            has_value = isinstance(outcome, float)
            leave(sweep_jobs, job, "finished" if has_value else outcome, outcome if has_value else 0.0)
        return SimpleNamespace(working_dir=str(job.directory))


@pytest.fixture(autouse=True)
def compose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobConfigs, "compose", lambda configs, _: configs.config)


def sweep(launcher: Launcher, *arguments: str, **settings: Any) -> list[tuple[str, ...]]:
    """A whole search; the jobs that were trained."""
    config = {"optimized_metric": "val/acc", "optimized_mode": "max", "callbacks": {"stopping": {}}}
    config |= {"hydra": {"sweep": {"dir": str(launcher.folder)}, "launcher": {}}}
    TuneSweep(OmegaConf.create(config), None, Settings.from_config(settings), launcher).run(arguments or [LR])  # pyright: ignore
    return launcher.trained


def near_a_hundredth(point: dict[str, str]) -> Outcome:
    return 1.0 - abs(float(point["model.optimizer.lr"]) - 0.01)


def test_a_search_killed_at_trial_7_of_20_ends_as_one_that_was_not(tmp_path: Path) -> None:
    arguments = (LR, "model.net.hidden=range(32,129,32)", "model/optimizer=adam,sgd", "seed=3")
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm = sweep(Launcher(tmp_path / "calm", near_a_hundredth), *arguments)
    first, second, third = (Launcher(tmp_path / "killed", near_a_hundredth, most) for most in (7, 1000, 1000))
    with pytest.raises(SystemExit):
        sweep(first, *arguments)
    sweep(second, *arguments)
    assert [*first.trained, *second.trained] == calm
    assert (len(calm), len({*calm})) == (20, 20)
    assert sweep(third, *arguments) == []
    hidden = {dict(item.split("=") for item in point)["model.net.hidden"] for point in calm}
    assert hidden == {"32", "64", "96", "128"}


def test_what_fails_is_not_tried_again_and_what_can_not_start_is_passed_over(tmp_path: Path) -> None:
    def outcome(point: dict[str, str]) -> Outcome:
        return {"mlp": "failed", "cnn": "refused", "vit": 0.5}[point["model"]]

    trained = sweep(Launcher(tmp_path, outcome), "model=mlp,cnn,vit", n_trials=9, n_jobs=3)
    assert sorted(trained) == [("model=mlp",), ("model=vit",)]
    assert sweep(Launcher(tmp_path, outcome), "model=mlp,cnn,vit", n_trials=9) == []
    (tmp_path / "other").mkdir()
    with pytest.raises(RefusedJob, match="no such thing"):
        sweep(Launcher(tmp_path / "other", lambda _: "refused"))


def with_scheduler(tmp_path: Path, scheduler: dict[str, Any]) -> Path:
    content = {"scheduler": scheduler, "metric": "val/acc", "mode": "max", "seed": 0}
    (tmp_path / TUNE).write_text(json.dumps(content))
    return tmp_path


def test_asha_ends_what_is_worse_than_half_of_those_that_came_as_far(tmp_path: Path) -> None:
    """Rungs at 1, 2, 4, ... validations; by a factor of 2 a job goes on from one if it is no worse than the median there."""
    sweep_dir = with_scheduler(tmp_path, ASHA)
    told = [("a", 1, 0.5), ("a", 2, 0.6), ("b", 1, 0.4), ("c", 1, 0.45), ("c", 2, 0.5), ("d", 1, 0.7), ("d", 2, 0.65)]
    answers = [report(sweep_dir / name, validations, value) for name, validations, value in told]
    assert answers == [False, False, True, False, True, False, False]  # b: 0.4 < 0.5; c: 0.45 of 0.5, 0.4 and 0.5 < 0.6
    assert [report(sweep_dir / name, validations, 0.0) for name, validations, _ in told] == answers  # a restart changes nothing
    assert len((sweep_dir / REPORTS).read_text().splitlines()) == len(told)


def test_the_median_rule_ends_what_never_was_as_good_as_others_on_average(tmp_path: Path) -> None:
    scheduler = {"_target_": "ray.tune.schedulers.MedianStoppingRule", "min_samples_required": 2, "grace_period": 1}
    sweep_dir = with_scheduler(tmp_path, scheduler)
    told = [("a", 1, 0.5), ("b", 1, 0.7), ("c", 1, 0.65), ("d", 1, 0.55)]
    assert [report(sweep_dir / name, validations, value) for name, validations, value in told] == [False, False, False, True]


def test_a_damaged_scheduler_ends_the_job_in_one_line(tmp_path: Path) -> None:
    (tmp_path / TUNE).write_text("{")
    with pytest.raises(NamedFailure, match=r"tune.json is damaged; the sweep's own command writes it anew$"):
        report(tmp_path / "a", 1, 0.5)


def test_a_report_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    sweep_dir = with_scheduler(tmp_path, ASHA)
    report(sweep_dir / "a", 1, 0.5)
    with (sweep_dir / REPORTS).open("a") as file:
        file.write('{"job": "b", "valid')
    assert report(sweep_dir / "b", 1, 0.4)
    assert [json.loads(line)["job"] for line in (sweep_dir / REPORTS).read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"scheduler": "HyperBandScheduler"}, "hydra.sweeper.scheduler=HyperBandScheduler: use ASHAScheduler, "),
        ({"scheduler": "PopulationBasedTraining"}, "hydra.sweeper.scheduler=PopulationBasedTraining: use "),
        ({"scheduler": ASHA | {"grace": 2}}, "hydra.sweeper.scheduler.grace=2: no such argument; use "),
        (
            {"scheduler": ASHA | {"metric": "x"}},
            "hydra.sweeper.scheduler.metric=x: is set by Lockstep; remove it from the config",
        ),
        ({"scheduler": ASHA | {"grace_period": 0}}, "grace_period must be positive"),
    ],
)
def test_what_a_sweep_can_not_do_is_refused_in_one_line(tmp_path: Path, settings: dict[str, Any], line: str) -> None:
    launcher = Launcher(tmp_path, near_a_hundredth)
    with pytest.raises(ConfigError) as refusal:
        sweep(launcher, **settings)
    assert line in str(refusal.value)
    assert (launcher.trained, [*tmp_path.iterdir()]) == ([], [])
