"""Test a checkpoint of a run with the run's own config, at any number of devices.

    lockstep evaluate RUN_DIR [key=value ...]
    lockstep evaluate RUN_DIR trainer.devices=3 --checkpoint last

The result is kept as RUN_DIR/evaluations/ID/metrics.json.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import logging
from dataclasses import replace
from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.errors import config_error
from lockstep.history.saved_runs import config_to_evaluate, find_checkpoint
from lockstep.launchers.environment import log_plainly
from lockstep.runs.run import Run
from lockstep.runs.validation import validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="changes to the saved config")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    given = parser.parse_intermixed_args()
    log_plainly()
    cfg = config_to_evaluate(given.run_dir.absolute(), given.overrides, "evaluations")
    cfg.init_from = str(find_checkpoint(given.run_dir, given.checkpoint))
    cfg, plan = validated(cfg)
    with Run(cfg, replace(plan, global_batch_size=None, lr=None)) as run:
        if run.is_parent:
            run.launch(evaluate, given.run_dir)
        else:
            evaluate(run, given.run_dir)


def evaluate(run: Run, run_dir: Path) -> None:
    from lockstep.build import build
    from lockstep.datamodules.from_config import lacking_for_test

    run.cfg.test = False  # that is for a training
    datamodule, model, trainer = build(run.cfg, run.plan)
    if (lacking := lacking_for_test(model, datamodule)) is not None:
        raise config_error("RUN_DIR", run_dir, f"{lacking}; choose a run that has a test")
    logging.info(f"The weights are those of {run.cfg.init_from}.")  # the last ones, where there are no best ones
    trainer.test(model, datamodule, verbose=False)
    run.finish(trainer)


if __name__ == "__main__":
    start(main)
