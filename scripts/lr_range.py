"""Which learning rate? A range test: one short training whose rate rises until it diverges (Smith 2017, arXiv:1506.01186).

    python scripts/lr_range.py [any overrides of train.py]
    python scripts/lr_range.py trainer.devices=2 model=resnet18 datamodule=cifar10 lr_range.from=1e-5 lr_range.to=3

It takes the samples in the order in which a run takes them, in the same global batches, at any number of devices, and suggests
the rate at which the loss falls fastest. That holds for this global batch, and for the beginning of a training.

    lr_range.from=1e-6   the first rate
    lr_range.to=1.0      the last one
    lr_range.steps=200   optimizer steps from one to the other, exponentially
    lr_range.stop_at=4   ends earlier, where the mean of the latest losses is so many times the lowest it has been
    run_dir=...          where lr_range.png, metrics.json with the curve, and tensorboard/ go: logs/lr_range/TIME

No checkpoint is saved, and nothing that was trained is kept.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
from pathlib import Path

from omegaconf import DictConfig

from lockstep.__main__ import script_parser
from lockstep.atomic_files import read_json
from lockstep.cli import start
from lockstep.config.checks import check_types
from lockstep.config.overrides import check_single, quote
from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.launchers.environment import log_plainly, run_id
from lockstep.runs.composition import compose
from lockstep.runs.run import Run
from lockstep.runs.validation import validated

_TYPES = {"lr_range.from": float, "lr_range.to": float, "lr_range.steps": int, "lr_range.stop_at": float}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    overrides = parser.parse_args().overrides
    check_single(overrides)
    log_plainly()
    cfg = compose(f"run_dir={quote(str(Path('logs', 'lr_range', run_id()).absolute()))}", *overrides, config_name="lr_range")
    _check(cfg)
    cfg.optimized_metric = None  # a range test compares losses
    _, plan = validated(cfg)
    with Run(cfg, plan) as run:
        if run.is_parent:
            run.launch(test_range)
        else:
            test_range(run)
    if run.is_owner:
        _say(run.directory, f"model.{rate_key(cfg.model) or 'optimizer.lr'}")


def test_range(run: Run) -> None:
    from lockstep.build import build

    datamodule, model, trainer = build(run.cfg, run.plan)
    trainer.fit(model, datamodule)
    run.finish(trainer)


def _check(cfg: DictConfig) -> None:
    """Raises ConfigError for a range that is none."""
    check_types(cfg, _TYPES)
    first, last = cfg.lr_range["from"], cfg.lr_range.to
    for key, least in {"from": 1e-12, "steps": 10, "stop_at": 1}.items():
        if cfg.lr_range[key] < least:
            raise config_error(f"lr_range.{key}", cfg.lr_range[key], f"is too small; use at least {least:g}")
    if not first < last:
        raise config_error("lr_range.to", last, f"accepted is a number above lr_range.from={first}")


def _say(directory: Path, key: str) -> None:
    result = (read_json(directory / "metrics.json") or {})["lr_range"]
    rate = "No rate is suggested" if result["suggestion"] is None else f"{key}={result['suggestion']:.2g}"
    print(f"\n{rate}: {result['reason']}\nThe curve: {directory / 'lr_range.png'}", flush=True)


if __name__ == "__main__":
    start(main)
