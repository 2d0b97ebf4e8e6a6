"""A sweep in TensorBoard: its runs, scalars and hyperparameters, as TensorBoard's own server and a browser show them."""

import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measured
import pytest
from in_process import composed
from saved_run import save_run
from tensorboard import program

from lockstep.launchers.environment import SWEPT_KEYS
from lockstep.runs.results import log_result
from lockstep.trainer.loggers import TensorBoardLogger

pytestmark = pytest.mark.slow
RATES = {0.001: 0.8, 0.003: 0.9}  # and the metric of each


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a TensorBoard over a sweep of two rates that has ended: each job has logged as one of a sweep does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWEPT_KEYS, "model model/optimizer model.optimizer.lr")
        folder = logged(tmp_path_factory)
    board = program.TensorBoard()
    quick = ("--host=127.0.0.1", "--port=0", "--load_fast=false", "--reload_interval=0")
    board.configure(argv=["tensorboard", "--logdir", str(folder), *quick])
    return board.launch().rstrip("/")  # until this process ends


def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensorboard")
    measured.sweep(folder, [measured.cell(1, lr, metric=metric) for lr, metric in RATES.items()])
    for job in folder.glob("devices=*"):
        overrides = ["model=mlp", "model/optimizer=sgd", f"model.optimizer.lr={job.name.split('_')[1].partition('=')[2]}"]
        choices = {"model": "mlp", "model/optimizer": "sgd"}
        cfg = composed(*overrides, run_dir=job)
        save_run(job, *overrides, choices=choices)
        options: Any = {"name": "tensorboard", "version": "", "default_hp_metric": False}
        logger = TensorBoardLogger(job, **options, optimized_metric=cfg.optimized_metric)
        logger.log_metrics({"train/loss": 0.5}, step=1)
        logger.log_metrics({"val/acc": RATES[cfg.model.optimizer.lr]}, step=2)
        trainer = SimpleNamespace(loggers=[logger], callbacks=[], global_step=2)
        log_result(cfg, trainer, {"global_batch_size": 32}, {})
    return folder


def asked(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/data/{path}", timeout=60) as answer:
        return json.loads(answer.read())


def test_runs_have_the_names_of_what_differs_and_their_scalars(url: str) -> None:
    runs = sorted(asked(url, "runs"))
    assert [run.rpartition("_")[0] or run for run in runs] == [f"devices=1_lr={lr}_seed=0" for lr in RATES]
    tags = asked(url, "plugin/scalars/tags")
    assert [{"train/loss", "val/acc"} <= set(tags.get(run, ())) for run in runs] == [True, True]


def test_the_hyperparameters_are_the_chosen_options_and_what_was_swept(url: str) -> None:
    experiment = asked(url, "plugin/hparams/experiment?request=%7B%7D")
    values = {info["name"]: info.get("domainDiscrete", info.get("domainInterval")) for info in experiment["hparamInfos"]}
    assert values["model.optimizer.lr"] == {"minValue": 0.001, "maxValue": 0.003}
    assert (values["model"], values["model/optimizer"]) == (["mlp"], ["sgd"])
    assert sorted(values) == ["model", "model.optimizer.lr", "model/optimizer"]
    assert experiment["metricInfos"][0]["name"]["tag"] == "Optimized/val/acc"  # the first column beside those
