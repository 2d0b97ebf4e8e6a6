"""Find a learning rate: one short training whose rate rises until it diverges (Smith 2017, arXiv:1506.01186).

    lockstep lr_range [any overrides of train.py]
    lockstep lr_range trainer.devices=2 model=resnet18 datamodule=cifar10 lr_range.from=1e-5 lr_range.to=3

It takes the samples as a run takes them, and suggests the rate at which the loss falls fastest: for this global batch, and for
the beginning of a training. No checkpoint is saved.

    lr_range.from=1e-6   the first rate
    lr_range.to=1.0      the last one
    lr_range.steps=200   optimizer steps from one to the other, exponentially
    lr_range.stop_at=4   ends earlier, where the mean of the latest losses is so many times the lowest it has been
    run_dir=...          where lr_range.png, metrics.json with the curve, and tensorboard/ go: logs/lr_range/TIME
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.atomic_files import read_json
from lockstep.cli import start
from lockstep.config.overrides import check_single, quote
from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.launchers.environment import log_plainly, run_id
from lockstep.runs.composition import compose
from lockstep.runs.run import Run
from lockstep.runs.validation import validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    overrides = parser.parse_args().overrides
    check_single(overrides)
    log_plainly()
    cfg = compose(f"run_dir={quote(str(Path('logs', 'lr_range', run_id()).absolute()))}", *overrides, config_name="lr_range")
    if not 0 < cfg.lr_range["from"] < cfg.lr_range.to:
        raise config_error("lr_range.to", cfg.lr_range.to, f"is not above lr_range.from={cfg.lr_range['from']} and 0")
    cfg.optimized_metric = None  # a range test compares losses
    _, plan = validated(cfg)
    with Run(cfg, plan) as run:
        if run.is_parent:
            run.launch(test_range)
        else:
            test_range(run)
    if run.is_owner:
        found = (read_json(run.directory / "metrics.json") or {})["lr_range"]
        key = f"model.{rate_key(cfg.model) or 'optimizer.lr'}"
        rate = "No rate is suggested" if found["suggestion"] is None else f"{key}={found['suggestion']:.2g}"
        print(f"\n{rate}: {found['reason']}\nThe curve: {run.directory / 'lr_range.png'}", flush=True)


def test_range(run: Run) -> None:
    from lockstep.build import build

    datamodule, model, trainer = build(run.cfg, run.plan)
    trainer.fit(model, datamodule)
    run.finish(trainer)


if __name__ == "__main__":
    start(main)
