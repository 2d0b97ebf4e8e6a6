"""The same bits on 1, 2, 4 and 8 processes, for the shipped models, and what that costs beside DDP.

    python benchmarks/exact.py [--workers 8] [--steps 200] [--only NAME ...]
    python benchmarks/exact.py --kills 10

Each model is trained with trainer.exact=WORKERS on each number of processes, and once by DDP on two with batches of
the same size, accumulated; every process has one thread.
Prints a Markdown table: a row is equal where the hashes of weights, optimizer states, buffers and metrics of the last checkpoint
are one. Exit code 1 where one is not.

With --kills a run is killed that often, each time by SIGKILL to all its processes at a moment drawn at random, and resumed on
another number of processes: is its last checkpoint that of a run that nobody has killed?
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hardware import processor

ROOT = Path(__file__).resolve().parents[1]
FIXED = (
    "trainer=cpu",
    "test=false",
    "logger=csv",
    "callbacks.pictures=null",
    "trainer.max_epochs=-1",
    "max_processes_per_core=8",
)
FIXED += ("trainer.limit_val_batches=2", "optimized_metric=train/loss", "optimized_mode=min", "fresh_processes=false")
IMAGES = ("datamodule=synthetic_images", "datamodule.shape=[3,8,8]", "datamodule.length=1000", "datamodule.batch_size=4")
TEXT = ("datamodule=text", "datamodule.context=32", "datamodule.batch_size=1")
GPT = ("model=gpt_nano", "model.net.width=32", "model.net.depth=2", *TEXT)
MODELS: dict[str, tuple[str, ...]] = {
    "mlp, AdamW, dropout, EMA, a ragged tail": (
        "model=mlp",
        "model.net.dropout=0.2",
        "callbacks=ema",
        "datamodule.drop_last=false",
    ),
    "mlp, SGD, clipped": ("model=mlp", "model/optimizer=sgd", "trainer.gradient_clip_val=0.1"),
    "cnn, AdamW, augmentation, two data workers": ("model=cnn", "datamodule.num_workers=2"),
    "cnn, Muon": ("model=cnn", "model/optimizer=muon"),
    "resnet18, SGD": ("model=resnet18", "model/optimizer=sgd", *IMAGES),
    "vit, AdamW": ("model=vit", "model.net.width=32", "model.net.depth=2", "model.net.heads=2", "model.net.patch=4", *IMAGES),
    "gpt, AdamW": GPT,
}
PRECISIONS = ("32-true", "bf16-mixed")
COUNTS = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="models with such a text in their names")
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    if given.kills:
        sys.exit(not survives(given))
    counts = [count for count in COUNTS if count <= given.workers]
    git = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    command, versions = shlex.join(["python", "benchmarks/exact.py", *sys.argv[1:]]), f"torch {version('torch')}, lightning"
    print(f"`{command}`; commit {git.stdout.strip()}, {versions} {version('lightning')}, Python")
    print(f"{platform.python_version()}, {processor()}.\n")
    print(f"Seconds of rank zero's processor in training, of {given.steps} steps; every process has one thread.\n")
    print(f"| | precision | the same bits on {', '.join(map(str, counts))} processes | one | two | DDP on two |")
    print("|---|---|---|---|---|---|")
    are_equal = [
        row(name, precision, counts, given)
        for name in MODELS
        if any(text in name for text in given.only)
        for precision in PRECISIONS
    ]
    sys.exit(not all(are_equal))


def row(name: str, precision: str, counts: list[int], given: argparse.Namespace) -> bool:
    overrides = (*FIXED, *MODELS[name], f"trainer.precision={precision}", f"trainer.max_steps={given.steps}")
    with TemporaryDirectory() as folder:
        exact = [train(Path(folder) / str(n), n, *overrides, f"trainer.exact={given.workers}") for n in counts]
        ddp = train(Path(folder) / "ddp", 2, *overrides, f"trainer.accumulate_grad_batches={given.workers // 2}")
    hashes = {digest for digest, _ in exact}
    verdict = f"yes, `{exact[0][0][:12]}`" if len(hashes) == 1 else f"NO: {', '.join(digest[:12] for digest, _ in exact)}"
    seconds = " | ".join(f"{seconds:.1f}" for _, seconds in (*exact[:2], ddp))
    print(f"| {name} | {precision} | {verdict} | {seconds} |", flush=True)
    return len(hashes) == 1


def train(run_dir: Path, devices: int, *overrides: str) -> tuple[str, float]:
    """A hash of what the last checkpoint holds of the training, and the seconds of processor."""
    where = () if any(override.startswith("resume=") for override in overrides) else (f"hydra.run.dir={run_dir}",)
    command = [sys.executable, str(ROOT / "train.py"), *overrides, f"trainer.devices={devices}", *where]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=run_dir.parent, timeout=1800, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    checkpoint = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)
    digest = hashlib.sha256()
    for part in ("state_dict", "optimizer_states", "metrics", "exact", "lr_schedulers"):
        _add(digest, checkpoint.get(part))
    return digest.hexdigest(), json.loads((run_dir / "metrics.json").read_text())["train_cpu_time"]


def survives(given: argparse.Namespace) -> bool:
    overrides = (
        *FIXED,
        *MODELS["mlp, AdamW, dropout, EMA, a ragged tail"],
        f"trainer.exact={given.workers}",
        "datamodule.batch_size=8",
    )
    overrides += (f"trainer.max_steps={20 * given.kills}", "guards.checkpoint.every_n_steps=1")
    draw, counts, killed = random.Random(0), [n for n in COUNTS if n <= given.workers], []
    with TemporaryDirectory() as folder:
        whole = train(Path(folder) / "whole", 1, *overrides)[0]
        run_dir, arguments = Path(folder) / "killed", (*overrides, f"hydra.run.dir={folder}/killed")
        while len(killed) < given.kills:
            devices = draw.choice([n for n in counts if not killed or n != killed[-1][0]])
            if (steps := _kill(run_dir, arguments, devices, draw.uniform(0, 1.0))) is None:
                break
            killed.append((devices, steps))
            arguments = (f"resume={run_dir}", "guards.checkpoint.every_n_steps=1")
        ended = train(run_dir, 2, *arguments)[0]
    print(f"killed on so many processes, after so many steps: {', '.join(f'{n} after {steps}' for n, steps in killed)}")
    print(f"{'equal' if whole == ended else 'NOT EQUAL'}: {whole[:12]} undisturbed, {ended[:12]} after {len(killed)} kills")
    return whole == ended


def _kill(run_dir: Path, arguments: Sequence[str], devices: int, seconds: float) -> int | None:
    """Starts the run, and kills it so long after its first new checkpoint. Returns its last one's step; None if it has ended."""
    command = [sys.executable, str(ROOT / "train.py"), *arguments, f"trainer.devices={devices}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    last = run_dir / "checkpoints" / "last.ckpt"
    before = last.stat().st_ino if last.exists() else 0
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=run_dir.parent)
    while process.poll() is None and (not last.exists() or last.stat().st_ino == before):
        time.sleep(0.01)
    time.sleep(seconds)
    if process.poll() is not None:
        return None
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False)
    for pid in (process.pid, *map(int, children.stdout.split())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return torch.load(last, weights_only=True)["global_step"]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in value:
            digest.update(repr(key).encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _add(digest, item)
    elif isinstance(value, torch.Tensor):
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    else:
        digest.update(repr(value).encode())


if __name__ == "__main__":
    main()
