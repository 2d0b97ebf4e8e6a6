"""A search whose launcher trains nothing: its space, what it asks and reports, what is left when it is killed, and pruning."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_sweep import leave
from hydra.core.override_parser.overrides_parser import OverridesParser
from in_process import KeepAll, trained
from lightning import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from omegaconf import OmegaConf
from optuna import Study
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from lockstep.config.construct import construct
from lockstep.errors import ConfigError
from lockstep.runs.composition import CONF
from lockstep.search import PRUNED
from lockstep.search.pruning import Pruning
from lockstep.search.space import Space
from lockstep.search.study import POINT, load_study, open_study
from lockstep.sweeps.jobs import Job, SweepJobs


def space(*overrides: str) -> Space:
    return Space.from_overrides(OverridesParser.create().parse_overrides([*overrides]))


@pytest.mark.parametrize(
    ("value", "distribution"),
    [
        ("interval(1e-4,1e-1)", FloatDistribution(1e-4, 1e-1)),
        ("tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        ("int(interval(1,8))", IntDistribution(1, 8)),
        ("range(1,4)", CategoricalDistribution(["1", "2", "3"])),  # as Hydra's range: without its end
        ("1,2,2", CategoricalDistribution(["1", "2"])),
        ("choice([64],[128,'a b'])", CategoricalDistribution(["[64]", "[128,'a b']"])),
    ],
)
def test_each_form_of_hydra_s_is_a_distribution(value: str, distribution: Any) -> None:
    assert space(f"x={value}").distributions == {"x": distribution}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("x=tag(lg,interval(1,2))", r"x=tag\(lg,interval\(1,2\)\): tag lg is not known here; use tag"),
        ("x=tag(log,interval(0,1))", r"x=tag\(log,interval\(0,1\)\): .*low.*log"),
        ("x=1", "hydra/sweeper=optuna: there is nothing to search; use an override such as 'model.optimizer.lr="),
    ],
)
def test_what_is_no_space_is_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(override)


LR = "model.optimizer.lr=tag(log,interval(1e-4,1e-1))"
Outcome = float | str  # the metric, or how the job ended that has none


class Sweep:
    """Leaves of each job what a sweep would. `outcome` says what comes of a point; `most`: jobs after which it is killed."""

    def __init__(self, folder: Path, outcome: Callable[[dict[str, str]], Outcome], most: int = 1000) -> None:
        self.folder, self.outcome, self.most = folder, outcome, most
        self.trained: list[tuple[str, ...]] = []
        self.outcomes: dict[str, Outcome] = {}
        folder.mkdir(exist_ok=True)

    def compose(self, overrides: Sequence[str]) -> Job:
        key = hashlib.sha256(repr(tuple(overrides)).encode()).hexdigest()[:12]
        self.outcomes[key] = self.outcome(dict(item.split("=", 1) for item in overrides))
        if self.outcomes[key] == "refused":
            raise ConfigError("no such thing")
        return Job(self.folder / key, key, [*overrides], 1, "val/acc", "max")

    def run(self, jobs: Sequence[Job]) -> list[Job]:
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


def search(launcher: Sweep, *arguments: str, metric: str = "val/acc", **settings: Any) -> Any:
    """Run a whole search; return its study."""
    shipped: Any = OmegaConf.to_container(OmegaConf.load(CONF / "hydra" / "sweeper" / "optuna.yaml"))
    sweeper = {key: value for key, value in shipped.items() if not key.startswith("_")} | settings
    hydra = {"sweep": {"dir": str(launcher.folder)}, "launcher": {"dry_run": False}, "sweeper": sweeper}
    config = OmegaConf.create({"optimized_metric": metric, "optimized_mode": "max", "hydra": hydra})
    node = {"_target_": "lockstep.search.search.Search", **sweeper}
    construct("hydra.sweeper", node, {"config": config, "loader": None, "sweep": launcher}).run(arguments or [LR])
    return load_study(launcher.folder)


def states(study: Any) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_a_search_killed_at_trial_7_of_20_ends_as_one_that_was_not(tmp_path: Path) -> None:
    arguments = (LR, "model.net.dropout=interval(0,0.5)", "seed=3")
    calm = search(Sweep(tmp_path / "calm", near_a_hundredth), *arguments)
    first, second, third = (Sweep(tmp_path / "killed", near_a_hundredth, most) for most in (7, 1000, 1000))
    with pytest.raises(SystemExit):
        search(first, *arguments)
    assert states(load_study(tmp_path / "killed")) == ["COMPLETE"] * 7 + ["RUNNING"]
    killed = search(second, *arguments)
    assert states(killed) == ["COMPLETE"] * 20
    for own, other in zip(killed.trials, calm.trials, strict=True):
        assert (own.user_attrs["overrides"], own.value) == (other.user_attrs["overrides"], other.value)
    assert len({*first.trained, *second.trained}) == len(first.trained) + len(second.trained) == 20
    search(third, *arguments)
    assert (third.trained, len(killed.trials)) == ([], 20)


def test_what_fails_is_reported_as_failed(tmp_path: Path) -> None:
    launcher = Sweep(tmp_path, lambda point: {"mlp": "failed", "cnn": "refused", "vit": 0.5}[point["model"]])
    study = search(launcher, "model=mlp,cnn,vit", n_trials=12)
    reasons = {trial.params["model"]: (trial.state.name, trial.user_attrs.get("reason")) for trial in study.trials}
    assert reasons == {"mlp": ("FAIL", "planted"), "cnn": ("FAIL", "no such thing"), "vit": ("COMPLETE", None)}
    assert {*launcher.trained} == {("model=mlp",), ("model=vit",)}
    assert launcher.trained.count(("model=vit",)) == 1  # however often it is drawn


def test_a_search_of_which_nothing_can_start_and_a_study_of_another_metric_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such thing"):
        search(Sweep(tmp_path / "refused", lambda _: "refused"))
    search(Sweep(tmp_path, lambda _: 0.5), "model=mlp,cnn", n_trials=1)
    with pytest.raises(ConfigError, match=r"^optimized_metric=val/f1: the study in .* is of val/acc; "):
        search(Sweep(tmp_path, lambda _: 0.5), "model=mlp,cnn", metric="val/f1")


NOBODY = {"_target_": "optuna.pruners.NopPruner"}
# val/acc is below 2: from the second validation on
AT_THE_SECOND = {"_target_": "optuna.pruners.ThresholdPruner", "lower": 2.0, "n_warmup_steps": 1}
PRUNING = ("callbacks=pruning", "test=false")


def search_with_a_job(folder: Path, pruner: dict[str, Any]) -> tuple[Study, Path]:
    """Return a study of the best val/acc, and the directory of its only trial, whose job is still to be run."""
    folder.mkdir()
    study = open_study(folder, "val/acc", "max", pruner)
    study.ask().set_user_attr(POINT, overrides := ["model.optimizer.lr=0.01"])
    Job(run_dir := folder / "lr=0.01_abc", "abc", overrides, 1, "val/acc", "max").make()
    return study, run_dir


def find_pruning(trainer: Any) -> Pruning:
    return next(callback for callback in trainer.callbacks if isinstance(callback, Pruning))


def test_a_pruned_trial_ends_as_if_stopped_early_and_says_so(tmp_path: Path) -> None:
    study, run_dir = search_with_a_job(tmp_path / "search", AT_THE_SECOND)
    _, trainer = trained(run_dir, *PRUNING)
    assert (trainer.current_epoch, find_pruning(trainer).facts()) == (2, {PRUNED: 2})
    values = study.trials[0].intermediate_values  # by the number of validations before each
    assert (list(values), values[1]) == ([0, 1], float(trainer.callback_metrics["val/acc"]))


@pytest.mark.filterwarnings("ignore:The reported value is ignored")
def test_a_trial_that_is_broken_off_counts_on_and_tells_nothing_twice(tmp_path: Path) -> None:
    study, run_dir = search_with_a_job(tmp_path / "search", NOBODY)
    (run_dir / "kept").mkdir(parents=True)
    _, trainer = trained(run_dir, *PRUNING, extra=[KeepAll(run_dir / "kept")])
    first = study.trials[0].intermediate_values
    assert (list(first), find_pruning(trainer).facts()) == ([0, 1, 2], {})
    trained(run_dir, *PRUNING, ckpt_path=run_dir / "kept" / "5.ckpt")  # in the second of three epochs
    assert study.trials[0].intermediate_values == first


def test_another_rank_does_what_rank_zero_decides_and_asks_no_study() -> None:
    answers = [False, True]
    strategy = SimpleNamespace(broadcast=lambda _: answers.pop(0))
    facts = {"is_global_zero": False, "sanity_checking": False, "should_stop": False, "default_root_dir": "run"}
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn=TrainerFn.FITTING), strategy=strategy, **facts)
    pruning, model = Pruning("val/acc"), LightningModule()
    pruning.on_fit_start(trainer, model)
    pruning.on_validation_end(trainer, model)
    assert not trainer.should_stop
    pruning.on_validation_end(trainer, model)
    assert (trainer.should_stop, pruning.facts()) == (True, {PRUNED: 2})
