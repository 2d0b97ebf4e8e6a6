"""Train one run:  python train.py [GROUP=OPTION ...] [key=value ...]"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import hydra
from omegaconf import DictConfig

from lockstep.cli import importing_much, start
from lockstep.runs.opening import open_run
from lockstep.runs.run import Run


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> float | None:
    """Return the optimized metric."""
    with open_run(cfg) as run:
        if run.is_parent:
            run.launch(train)  # once per rank, in a process of its own
        else:
            train(run)
    return run.result


def train(run: Run) -> None:
    with importing_much():  # torch and Lightning, only in processes that train
        from lockstep.build import build
        from lockstep.runs.results import best_checkpoint

        datamodule, model, trainer = build(run.cfg, run.plan, run.checkpoint)
    trainer.fit(model, datamodule, ckpt_path=run.checkpoint)
    if run.cfg.test:
        trainer.test(model, datamodule, ckpt_path=best_checkpoint(trainer), verbose=False)
    run.finish(trainer)


if __name__ == "__main__":
    start(main)
