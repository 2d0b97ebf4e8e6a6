"""A search whose launcher trains nothing: what it asks, what it reports, and what is left when it is killed."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_sweep import leave
from omegaconf import OmegaConf

from lockstep.config.construct import construct
from lockstep.errors import ConfigError
from lockstep.runs.composition import CONF
from lockstep.search.study import load_study
from lockstep.sweeps.jobs import Job, SweepJobs

LR = "model.optimizer.lr=tag(log,interval(1e-4,1e-1))"
Outcome = float | str  # the metric, or how the job ended that has none


class Sweep:
    """Leaves of each job what a sweep would. `outcome` says what comes of a point; `most`: jobs after which it is killed."""

    def __init__(self, folder: Path, outcome: Callable[[dict[str, str]], Outcome], most: int = 1000) -> None:
        self.folder, self.outcome, self.most = folder, outcome, most
        self.trained: list[tuple[str, ...]] = []
        self.batches: list[int] = []
        self.outcomes: dict[str, Outcome] = {}

    def compose(self, overrides: Sequence[str]) -> Job:
        key = hashlib.sha256(repr(tuple(overrides)).encode()).hexdigest()[:12]
        self.outcomes[key] = self.outcome(dict(item.split("=", 1) for item in overrides))
        if self.outcomes[key] == "refused":
            raise ConfigError("no such thing")
        return Job(self.folder / key, key, [*overrides], 1, "val/acc", "max")

    def run(self, jobs: Sequence[Job]) -> list[Job]:
        self.batches.append(len(jobs))
        return [self._run(job) for job in jobs]

    def break_off(self, error: BaseException) -> None: ...

    def _run(self, job: Job) -> Job:
        if len(self.trained) == self.most:
            raise SystemExit(137)
        sweep_jobs = SweepJobs(self.folder)
        if todo := sweep_jobs.register([job]):
            self.trained.append(tuple(job.overrides))
            outcome = self.outcomes[job.key]
            leave(todo[0], *(("finished", outcome) if isinstance(outcome, float) else (outcome, 0.0)))
        return sweep_jobs.jobs[job.key]


def near_a_hundredth(point: dict[str, str]) -> Outcome:
    return 1.0 - abs(float(point["model.optimizer.lr"]) - 0.01)


def search(launcher: Sweep, *arguments: str, dry_run: bool = False, metric: str = "val/acc", **settings: Any) -> Any:
    """A whole search; its study."""
    shipped: Any = OmegaConf.to_container(OmegaConf.load(CONF / "hydra" / "sweeper" / "optuna.yaml"))
    sweeper = {key: value for key, value in shipped.items() if not key.startswith("_")} | settings
    hydra = {"sweep": {"dir": str(launcher.folder)}, "launcher": {"dry_run": dry_run}, "sweeper": sweeper}
    config = OmegaConf.create({"optimized_metric": metric, "optimized_mode": "max", "hydra": hydra})
    node = {"_target_": "lockstep.search.search.Search", **sweeper}
    construct("hydra.sweeper", node, {"config": config, "loader": None, "sweep": launcher}).run(arguments or [LR])
    return None if dry_run else load_study(launcher.folder)


def points(study: Any) -> list[list[str]]:
    return [trial.user_attrs["overrides"] for trial in study.trials]


def states(study: Any) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_a_search_killed_at_trial_7_of_20_ends_as_one_that_was_not(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    arguments = (LR, "model.net.dropout=interval(0,0.5)", "seed=3")
    calm = search(Sweep(tmp_path / "calm", near_a_hundredth), *arguments)
    first, second, third = (Sweep(tmp_path / "killed", near_a_hundredth, most) for most in (7, 1000, 1000))
    with pytest.raises(SystemExit):
        search(first, *arguments)
    assert states(load_study(tmp_path / "killed")) == ["COMPLETE"] * 7 + ["RUNNING"]
    killed = search(second, *arguments)
    assert states(killed) == ["COMPLETE"] * 20
    assert points(killed) == points(calm)
    assert [trial.value for trial in killed.trials] == [trial.value for trial in calm.trials]
    assert len({*first.trained, *second.trained}) == len(first.trained) + len(second.trained) == 20
    search(third, *arguments)
    assert (third.trained, len(killed.trials)) == ([], 20)


def test_trials_are_handed_over_in_batches_that_end_with_the_last(tmp_path: Path) -> None:
    launcher = Sweep(tmp_path, near_a_hundredth)
    search(launcher, n_trials=7, n_jobs=3)
    assert launcher.batches == [3, 3, 1]
    more = Sweep(tmp_path, near_a_hundredth)
    search(more, n_trials=9, n_jobs=3)
    assert (more.batches, len(more.trained)) == ([2], 2)


def test_what_fails_is_reported_as_failed(tmp_path: Path) -> None:
    def outcome(point: dict[str, str]) -> Outcome:
        return {"mlp": "failed", "cnn": "refused", "vit": 0.5}[point["model"]]

    launcher = Sweep(tmp_path, outcome)
    study = search(launcher, "model=mlp,cnn,vit", n_trials=12)
    reasons = {trial.params["model"]: (trial.state.name, trial.user_attrs.get("reason")) for trial in study.trials}
    assert reasons == {"mlp": ("FAIL", "planted"), "cnn": ("FAIL", "no such thing"), "vit": ("COMPLETE", None)}
    assert {*launcher.trained} == {("model=mlp",), ("model=vit",)}


def test_a_search_of_which_nothing_can_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such thing"):
        search(Sweep(tmp_path, lambda _: "refused"))


def test_the_same_point_is_trained_once(tmp_path: Path) -> None:
    launcher = Sweep(tmp_path, lambda point: float(point["seed"]))
    study = search(launcher, "seed=0,1,2", n_trials=12, n_jobs=4)
    assert states(study) == ["COMPLETE"] * 12
    assert all(trial.value == float(trial.params["seed"]) for trial in study.trials)
    assert len(launcher.trained) == len({*launcher.trained}) <= 3


def test_a_job_that_was_interrupted_is_left_to_another_call(tmp_path: Path) -> None:
    calls = iter(["preempted", 0.5, 0.6])
    study = search(Sweep(tmp_path, lambda _: next(calls)), n_trials=3)
    assert states(study) == ["RUNNING", "COMPLETE", "COMPLETE"]


def test_a_study_of_another_metric_is_refused(tmp_path: Path) -> None:
    search(Sweep(tmp_path, lambda _: 0.5), "model=mlp,cnn", n_trials=1)
    with pytest.raises(ConfigError, match=r"^optimized_metric=val/f1: the study in .* is of val/acc; "):
        search(Sweep(tmp_path, lambda _: 0.5), "model=mlp,cnn", metric="val/f1")
