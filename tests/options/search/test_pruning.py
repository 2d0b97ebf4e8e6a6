"""Trials that tell their study how they stand, and end when its pruner says so."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import KeepAll, trained
from lightning import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from searched import NOBODY, search_with_a_job, values_in

from lockstep.search import PRUNED
from lockstep.search.pruning import Pruning

# val/acc is below 2: from the second validation on
AT_THE_SECOND = {"_target_": "optuna.pruners.ThresholdPruner", "lower": 2.0, "n_warmup_steps": 1}
PRUNING = ("callbacks=pruning", "test=false")


def find_pruning(trainer: Any) -> Pruning:
    return next(callback for callback in trainer.callbacks if isinstance(callback, Pruning))


def test_a_pruned_trial_ends_as_if_stopped_early_and_says_so(tmp_path: Path) -> None:
    study, run_dir = search_with_a_job(tmp_path / "search", AT_THE_SECOND)
    _, trainer = trained(run_dir, *PRUNING)
    assert trainer.current_epoch == 2
    assert find_pruning(trainer).facts() == {PRUNED: 2}
    assert list(values_in(study)) == [0, 1]
    assert values_in(study)[1] == float(trainer.callback_metrics["val/acc"])


@pytest.mark.filterwarnings("ignore:The reported value is ignored")
def test_a_trial_that_is_broken_off_counts_on_and_tells_nothing_twice(tmp_path: Path) -> None:
    study, run_dir = search_with_a_job(tmp_path / "search", NOBODY)
    (run_dir / "kept").mkdir(parents=True)
    _, trainer = trained(run_dir, *PRUNING, extra=[KeepAll(run_dir / "kept")])
    first = values_in(study)
    assert (list(first), find_pruning(trainer).facts()) == ([0, 1, 2], {})
    trained(run_dir, *PRUNING, ckpt_path=run_dir / "kept" / "5.ckpt")  # in the second of three epochs
    assert values_in(study) == first


def test_another_rank_does_what_rank_zero_decides_and_asks_no_study() -> None:
    answers = [False, True]
    state = SimpleNamespace(fn=TrainerFn.FITTING)
    strategy = SimpleNamespace(broadcast=lambda _: answers.pop(0))
    facts = {"is_global_zero": False, "sanity_checking": False, "should_stop": False, "default_root_dir": "run"}
    trainer: Any = SimpleNamespace(state=state, strategy=strategy, **facts)
    pruning, model = Pruning("val/acc"), LightningModule()
    pruning.on_fit_start(trainer, model)
    pruning.on_validation_end(trainer, model)
    assert not trainer.should_stop
    pruning.on_validation_end(trainer, model)
    assert (trainer.should_stop, pruning.facts()) == (True, {PRUNED: 2})
