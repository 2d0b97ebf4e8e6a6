"""A stand-in for train.py whose jobs are branches of the planted quadratic, and steps of a made-up link: a second each."""

import json
from pathlib import Path

import hydra
from omegaconf import DictConfig
from planted_answers import Quadratic

from lockstep.atomic_files import write_json
from lockstep.cli import start
from lockstep.config.plan import Plan
from lockstep.extras.plan.branches import Branch
from lockstep.extras.report.step_model import StepModel
from lockstep.runs import record

SMALLEST, NOISE, EPOCH = 16, 64, 20_000
LINK = StepModel(fixed=1e-3, per_sample=1e-4, latency=2e-4)


@hydra.main(version_base="1.3", config_path="../../../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    folder, plan = Path(cfg.run_dir), Plan.from_config(cfg)
    record.write_status(folder, "running")
    batch = plan.global_batch_size or 0
    seconds = LINK.seconds(plan.devices, batch / plan.devices) * (1 + 0.01 * (cfg.trainer.max_steps % 2))
    facts = {"world_size": plan.devices, "lr": plan.lr, "global_batch_size": batch, "wall_time": 1.0, "noise_scale": NOISE}
    facts |= {"seconds_per_step": seconds, "samples_per_epoch": EPOCH}
    facts["loss_at_samples"] = losses(cfg, plan)
    write_json(
        folder / "metrics.json", {"metrics": {"val/acc": 0.5}, "optimized_metric": "val/acc", **json.loads(json.dumps(facts))}
    )
    record.write_status(folder, "finished")


def losses(cfg: DictConfig, plan: Plan) -> dict[str, float]:
    """Of a branch from the first step on."""
    at = list(cfg.callbacks.plan.at)
    if not at:
        return {}
    points = [samples for samples in at if samples > 1]
    planted = Quadratic(noise=NOISE, smallest=SMALLEST, every=points[0], seed=0)
    (curve,) = planted.measure([Branch(0, (plan.global_batch_size or 0) // SMALLEST, plan.lr or 0.0, cfg.seed)], len(points))
    return dict(zip(map(str, at), curve if at[0] == 1 else curve[1:], strict=True))


if __name__ == "__main__":
    start(main)
