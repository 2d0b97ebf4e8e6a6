"""Rank zero alone tells the study and asks it; all ranks stop together."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fits import become_rank, prepared
from ranks import in_ranks
from searched import search_with_a_job, told

from lockstep.extras.search.files import PRUNED
from lockstep.extras.search.pruning import Pruning

pytestmark = pytest.mark.slow
PRUNER = {"_target_": "optuna.pruners.ThresholdPruner", "lower": 2.0, "n_warmup_steps": 1}


def train(rank: int, world_size: int, run_dir: Path) -> tuple[int, dict[str, Any], bool]:
    become_rank(rank, world_size)
    options = ("callbacks=pruning", "trainer.devices=2", "datamodule.batch_size=150")
    datamodule, model, trainer = prepared(run_dir, *options)
    trainer.fit(model, datamodule)
    callback = next(callback for callback in trainer.callbacks if isinstance(callback, Pruning))
    return trainer.current_epoch, callback.facts(), callback._trial is not None


def test_two_processes_are_pruned_together(tmp_path: Path) -> None:
    study, run_dir = search_with_a_job(tmp_path / "search", PRUNER)
    ranks = in_ranks(2, partial(train, run_dir=run_dir), tmp_path)
    assert ranks == [(2, {PRUNED: 2}, True), (2, {PRUNED: 2}, False)]
    assert list(told(study)) == [0, 1]
