"""Tests a checkpoint of a run with the run's own config, at any number of devices.

    python scripts/evaluate.py RUN_DIR [key=value ...]
    python scripts/evaluate.py RUN_DIR trainer.devices=3 --checkpoint last

The result is kept as RUN_DIR/evaluations/ID/metrics.json.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import logging
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.errors import config_error
from lockstep.extras.saved_runs.saved import config_to_evaluate, find_checkpoint
from lockstep.launchers.environment import log_plainly
from lockstep.runs.run import Run
from lockstep.runs.validation import validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="changes to the saved config")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    arguments = parser.parse_intermixed_args()
    log_plainly()
    cfg = _compose_evaluation(arguments.run_dir.absolute(), arguments.overrides)
    checkpoint = find_checkpoint(arguments.run_dir, arguments.checkpoint)
    cfg.init_from = str(checkpoint)
    cfg, plan = validated(cfg)
    with Run(cfg, plan) as run:
        if run.is_parent:
            run.launch(evaluate, arguments.run_dir, checkpoint, arguments.overrides)
        else:
            evaluate(run, arguments.run_dir, checkpoint, arguments.overrides)


def evaluate(run: Run, run_dir: Path, checkpoint: Path, overrides: list[str]) -> None:
    from lockstep.build import build

    run.cfg.test = False  # that is for a training
    datamodule, model, trainer = build(run.cfg, run.plan)
    _check_test(run_dir, model, datamodule)
    logging.info(f"The weights are those of {checkpoint}.")  # the last ones, where there are no best ones
    trainer.test(model, datamodule, verbose=False)
    _check_test(run_dir, model, datamodule)  # whose splits are known now
    if not any(one.startswith("optimized_metric=") for one in overrides):
        run.cfg.optimized_metric = _tested(run.cfg.optimized_metric, list(trainer.callback_metrics))
    run.finish(trainer)


def _compose_evaluation(run_dir: Path, overrides: list[str]) -> DictConfig:
    cfg = config_to_evaluate(run_dir, overrides, "evaluations")
    cfg.optimized_metric = cfg.optimized_metric and _name_in_test(cfg.optimized_metric)
    return cfg


def _check_test(run_dir: Path, model: Any, datamodule: Any) -> None:
    from lockstep.runs.results import lacking_for_test

    if (lacking := lacking_for_test(model, datamodule)) is not None:
        raise config_error("RUN_DIR", run_dir, f"{lacking}; accepted is a run that can be tested")


def _name_in_test(metric: str) -> str:
    return re.sub(r"^(train|val|validation)(?=[/_.])", "test", metric)


def _tested(metric: str | None, logged: list[str]) -> str | None:
    """The metric of the test, or else the logged one that stands for it, or else the first: a model may name them as it likes."""
    named = [metric] if metric in logged else [name for name in logged if _name_in_test(name) == metric]
    return next(iter(named or logged), metric)


if __name__ == "__main__":
    start(main)
