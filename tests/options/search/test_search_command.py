"""`python train.py -m hydra/sweeper=optuna ...`: a search of a small stand-in program (tests/support/fakes/program.py)."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python, started
from optuna.samplers import RandomSampler
from waiting import wait_for

from lockstep.search.study import load_study
from lockstep.sweeps.jobs import SweepJobs

PROGRAM = ROOT / "tests" / "support" / "fakes" / "program.py"
FIXED = ("-m", "hydra/sweeper=optuna", "trainer.accelerator=cpu", "fresh_processes=True", "hydra.sweep.dir=search")
SPACE = ("model.optimizer.lr=tag(log,interval(1e-3,1e-1))", "hydra.sweeper.n_trials=3")
SPACE += ("hydra.sweeper.sampler._target_=test_search_command.Interrupted",)


class Interrupted(RandomSampler):
    """Interrupted while it draws the second trial, as INTERRUPT says: by a signal of that name, or an error of its own."""

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if trial.number == 1 and (how := os.environ.get("INTERRUPT")) is not None:
            if how == "raise":
                raise ArithmeticError("planted fault")
            os.kill(os.getpid(), signal.Signals[how])
        return super().sample_independent(study, trial, param_name, param_distribution)


@pytest.mark.slow
def test_a_search_that_is_interrupted_between_two_trials_and_then_killed_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    command, env = (PROGRAM, *FIXED, *SPACE), {"JOURNAL": str(journal)}
    done = python(*command, cwd=tmp_path, fresh=True, INTERRUPT="SIGINT", **env, code=75)
    assert "The sweep was stopped: interrupted by SIGINT. Resume it: " in done.stderr
    assert "Traceback" not in done.stderr
    assert [trial.state.name for trial in load_study(tmp_path / "search").trials] == ["COMPLETE", "RUNNING"]
    with started(*command, cwd=tmp_path, **env) as process:
        wait_for(lambda: len([*journal.glob("*.began")]) >= 2)
        process.send_signal(signal.SIGKILL)
    done = python(*command, cwd=tmp_path, **env, code=0)
    study = load_study(tmp_path / "search")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3
    metrics = {job.directory.name: job.metric for job in SweepJobs(tmp_path / "search").jobs.values()}
    assert {trial.user_attrs["directory"]: trial.value for trial in study.trials} == metrics
    finished = Counter(path.name.rpartition(".")[0].rpartition(".")[0] for path in journal.glob("*.finished"))
    assert finished == Counter(str(trial.params["model.optimizer.lr"]) for trial in study.trials)
    assert done.stdout.count("finished") >= 3  # the table is of the whole search


@pytest.mark.slow
def test_a_search_that_breaks_off_between_two_trials_ends_with_its_table(tmp_path: Path) -> None:
    """It said no more than the error, with code 2, as if nothing had been trained."""
    done = python(PROGRAM, *FIXED, *SPACE, cwd=tmp_path, INTERRUPT="raise")
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (1, True), done.stdout + done.stderr
    assert "The sweep was stopped: ArithmeticError: planted fault. Resume it: " in done.stderr
    assert "1 of 1 job finished" in done.stdout
    assert "best: " in done.stdout
    done = python(PROGRAM, *FIXED, *SPACE, cwd=tmp_path, code=0)
    assert [trial.state.name for trial in load_study(tmp_path / "search").trials] == ["COMPLETE"] * 3
