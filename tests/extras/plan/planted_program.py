"""A stand-in for train.py whose jobs are branches of the planted quadratic, and steps of a made-up link: a second each."""

import json
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
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
    facts["loss_at_samples"], facts["start"] = losses(cfg, plan)
    if cfg.callbacks.plan.at:
        save(folder / "checkpoints")
    write_json(
        folder / "metrics.json", {"metrics": {"val/acc": 0.5}, "optimized_metric": "val/acc", **json.loads(json.dumps(facts))}
    )
    record.write_status(folder, "finished")


def save(folder: Path) -> None:
    """What branches begin from; the others go without torch."""
    import torch

    folder.mkdir(exist_ok=True)
    torch.save({"state_dict": {}, "global_step": 1, "epoch": 0}, folder / "last.ckpt")


def losses(cfg: DictConfig, plan: Plan) -> tuple[dict[str, float], int]:
    """Of a branch, and where it begins: a fork of the short training there, or at the end of what there is of it. Then it is as
    long as that was."""
    at = list(cfg.callbacks.plan.at)
    if not at or cfg.callbacks.noise_scale is not None:
        return dict.fromkeys(map(str, at), 1.0), 0
    before = json.loads((Path(OmegaConf.select(cfg, "fork")).parents[1] / "metrics.json").read_text())
    begins = max(map(int, before["loss_at_samples"]))
    start = before["start"] or begins
    own = [samples for samples in at if samples != start + 1]
    distance = own[0] - begins
    points = (own[-1] - start) // distance
    planted = Quadratic(noise=NOISE, smallest=SMALLEST, samples=points * distance, seed=0, points=points)
    (curve,) = planted.measure([Branch(start, (plan.global_batch_size or 0) // SMALLEST, plan.lr or 0.0)])
    return {str(samples): curve[0 if samples == start + 1 else (samples - start) // distance] for samples in at}, start


if __name__ == "__main__":
    start(main)
