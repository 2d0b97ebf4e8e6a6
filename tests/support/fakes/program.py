"""A stand-in for train.py that takes a second: the same command line, directory, record and checkpoints, without torch.

It counts to STEPS, saving checkpoints/last.ckpt at every step, and adds up a sum that depends on its learning rate. It
fails as the environment says: CHAOS is a seed, and an attempt then fails at random; jobs of FAULTS devices do so as HOW
says for the seed of their config.
"""

import math
import os
import random
import signal
import sys
import time
import zipfile
from pathlib import Path

import hydra
from omegaconf import DictConfig

from lockstep.atomic_files import write_json
from lockstep.cli import start
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.runs import record
from lockstep.runs.saved import is_queued

STEPS = 5
HOW = ("well", "raise", "kill", "exit", "exit 0", "nan", "hang", "preempted", "wait", "wait once")


@hydra.main(version_base="1.3", config_path="../../../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    folder = Path(cfg.run_dir)
    is_resumed = not is_queued(folder)
    record.write_status(folder, "running")
    journal(cfg, "began")
    first, total = continued(folder / "checkpoints" / "last.ckpt" if is_resumed else None)
    fatal_step, how = chaos(cfg) if "CHAOS" in os.environ else planted(cfg)
    for step in range(first, STEPS):
        if step == fatal_step and not (is_resumed and how in ("preempted", "wait once")):
            fail(how, folder)
        total += cfg.model.optimizer.lr * math.sqrt(step + 1)
        time.sleep(0.05)
        save(folder / "checkpoints" / "last.ckpt", f"{step + 1} {total!r}")
    devices, metrics = cfg.trainer.devices, {"val/acc": math.nan if how == "nan" else total}
    facts = {"world_size": devices, "lr": cfg.model.optimizer.lr, "train_time": 1.0, "wall_time": 1.0}
    facts |= {"samples_per_second": float(devices), "global_batch_size": cfg.datamodule.global_batch_size}
    write_json(folder / "metrics.json", {"metrics": metrics, "optimized_metric": "val/acc", **facts})
    record.write_status(folder, "finished")
    journal(cfg, "finished")


def chaos(cfg: DictConfig) -> tuple[int, str]:
    """The step to fail at and how; the first attempts of a job are likelier to fail, so that it ends some time."""
    attempt = len(list(Path(os.environ["JOURNAL"]).glob(f"{cfg.model.optimizer.lr}.*.began")))
    dice = random.Random(f"{os.environ['CHAOS']} {cfg.model.optimizer.lr} {attempt}")
    return dice.randrange(STEPS), dice.choice(["raise", "kill", "hang", "well"]) if attempt <= 2 else "well"


def planted(cfg: DictConfig) -> tuple[int, str]:
    return 2, HOW[cfg.seed] if os.environ.get("FAULTS") == str(cfg.trainer.devices) else "well"


def fail(how: str, folder: Path) -> None:
    if how == "preempted":
        record.write_status(folder, "preempted", "preempted by SIGTERM")
        raise SystemExit(75)
    if how == "raise":
        print("planted fault", file=sys.stderr)
        raise SystemExit(1)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how.startswith("exit"):
        os._exit(0 if how.endswith("0") else 7)
    if how == "hang" and "CHAOS" not in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how.startswith(("hang", "wait")):
        time.sleep(600)


def journal(cfg: DictConfig, what: str) -> None:
    if "JOURNAL" in os.environ:
        (Path(os.environ["JOURNAL"]) / f"{cfg.model.optimizer.lr}.{time.time_ns()}.{what}").write_text(Path(cfg.run_dir).name)


def continued(path: Path | None) -> tuple[int, float]:
    if path is None or not path.is_file():
        return 0, 0.0
    with zipfile.ZipFile(path) as archive:
        step, total = archive.read("state").decode().split()
    return int(step), float(total)


def save(path: Path, state: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path.with_suffix(".partial"), "w") as archive:
        archive.writestr("state", state)
    path.with_suffix(".partial").replace(path)
    HEARTBEAT.has_stepped = True


if __name__ == "__main__":
    start(main)
