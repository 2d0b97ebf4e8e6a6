"""The same bits on 1, 2, 4 and 8 processes, for the shipped models, and what that costs beside DDP.

    python benchmarks/exact.py [--workers 8] [--steps 200] [--only TEXT ...] [--precisions P ...] [--append FILE]
    python benchmarks/exact.py --kills 10
    unshare -n sh -c 'ip link set lo up; exec python benchmarks/exact.py --costs'

Each model is trained with trainer.exact=WORKERS on each number of processes, of one thread each. A line of the table says yes
where the hash of the last checkpoint is one: weights, optimizer states, buffers, averages, metrics and the state of callbacks.
Exit code 1 where one is not. A process of N is WORKERS / N workers in turn, which is what accumulation is here.

With --kills a run is killed that often, each time by SIGKILL to all its processes at a moment drawn at random, and resumed on
another number of processes: is its last checkpoint that of a run that nobody has killed?

With --costs the same micro-batches are trained by DDP, accumulated, in turn with trainer.exact in the same processes. The least
of the repetitions counts. The bytes are those of the loopback, of this program alone in a network namespace of its own.
"""

import argparse
import contextlib
import hashlib
import json
import logging
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
import torch.distributed as dist
from hardware import processor
from lightning import Callback, LightningModule, Trainer
from measuring import run_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose

ROOT = Path(__file__).resolve().parents[1]
FIXED = ("trainer=cpu", "test=false", "logger=csv", "callbacks.pictures=null", "trainer.max_epochs=-1")
FIXED += ("trainer.limit_val_batches=2", "optimized_metric=train/loss", "optimized_mode=min", "max_processes_per_core=8")
IMAGES = ("datamodule=synthetic_images", "datamodule.shape=[3,8,8]", "datamodule.length=483", "datamodule.val_length=40")
IMAGES += ("datamodule.batch_size=4",)
RAGGED = "datamodule.drop_last=false"  # an epoch's last batch has three samples: five of eight workers have none
AUGMENTED = "datamodule.augment={crop: 8, padding: 1}"
TEXT = ("datamodule=text", f"datamodule.paths=[{ROOT}/docs/parity.md]", "datamodule.context=32", "datamodule.batch_size=1")
GPT = ("model=gpt_nano", "model.net.width=32", "model.net.depth=2", *TEXT)
VIT = ("model=vit", "model.net.width=32", "model.net.depth=2", "model.net.heads=2", "model.net.patch=4", *IMAGES)
SGD, MUON, EMA = "model/optimizer=sgd", "model/optimizer=muon", "callbacks=ema"
CLIPPED = "trainer.gradient_clip_val=0.1"
MODELS: dict[str, tuple[str, ...]] = {
    "mlp, AdamW, dropout, EMA, ragged tail": ("model=mlp", "model.net.dropout=0.2", EMA, *IMAGES, RAGGED),
    "mlp, SGD, clipped": ("model=mlp", SGD, CLIPPED, *IMAGES),
    "cnn (BatchNorm), AdamW, augmentation, data worker, ragged tail": (
        *("model=cnn", "model.net.width=8", *IMAGES, AUGMENTED, RAGGED),
        "datamodule.num_workers=1",
    ),
    "cnn (BatchNorm), Muon, clipped, EMA": ("model=cnn", "model.net.width=8", MUON, CLIPPED, EMA, *IMAGES),
    "vit, AdamW, augmentation, data worker": (*VIT, AUGMENTED, "datamodule.num_workers=1"),
    "vit, SGD, clipped, EMA, ragged tail": (*VIT, SGD, CLIPPED, EMA, RAGGED),
    "gpt, AdamW, clipped, ragged tail": (*GPT, CLIPPED, RAGGED),
    "gpt, Muon, EMA": (*GPT, MUON, EMA),
    "resnet18, SGD, augmentation, ragged tail": (
        *("model=resnet18", SGD, *IMAGES, AUGMENTED, RAGGED),
        "datamodule.length=470",  # two samples or three for each worker in a tail: its last BatchNorm has a value of each
    ),
}
BATCH_256 = "datamodule.batch_size=256"
COSTLY = {  # large enough for their gradients to be a load
    "mlp": ("model=mlp", "model.net.hidden=[1024,1024]", *IMAGES, "datamodule.batch_size=8"),
    "deep mlp": ("model=mlp", "model.net.hidden=[512,512,512,512,512,512]", *IMAGES, "datamodule.length=4096", BATCH_256),
    "cnn": ("model=cnn", *IMAGES, "datamodule.shape=[3,16,16]", "datamodule.batch_size=8"),
    "gpt": ("model=gpt_nano", *TEXT, "datamodule.context=64", "datamodule.batch_size=2"),
}
PRECISIONS = ("32-true", "bf16-mixed")
COUNTS = (1, 2, 4, 8)
WARM_UP, REPETITIONS = 2, 3
# What says where a run was, and on how many processes; a process's own part of an epoch's means is empty but on rank zero.
PLACES = {"dirpath", "best_model_path", "best_k_models", "kth_best_model_path", "last_model_path", "run_id", "world_size"}
PLACES |= {"train_means"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, metavar="PRECISION")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="models with such a text in their names")
    parser.add_argument("--append", type=Path, metavar="FILE", help="to which the lines go; without it they are printed")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)  # as a rank of this program
    given = parser.parse_args()
    if given.rank_of is not None:
        train_all(given.rank_of)
        return
    if given.append is not None:
        sys.stdout = given.append.open("a")
    git = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    command, versions = shlex.join(["python", "benchmarks/exact.py", *sys.argv[1:]]), f"torch {version('torch')}, lightning"
    print(f"\n`{command}`; commit {git.stdout.strip()},\n{versions} {version('lightning')}, Python", end=" ")
    print(f"{platform.python_version()}, {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}.\n", flush=True)
    counts = [count for count in COUNTS if count <= given.workers]
    is_well = survives(given) if given.kills else costs(given, counts) if given.costs else bits(given, counts)
    sys.exit(not is_well)


def bits(given: argparse.Namespace, counts: Sequence[int]) -> bool:
    rows = [(name, precision) for name in MODELS if any(text in name for text in given.only) for precision in given.precisions]
    fixed = (*FIXED, f"trainer.exact={given.workers}", f"trainer.max_steps={given.steps}")
    jobs = [[*fixed, *MODELS[name], f"trainer.precision={precision}"] for name, precision in rows]
    results = [run(count, jobs) for count in counts]
    print(f"| | precision | steps | the same bits on {', '.join(map(str, counts))} processes |\n|---|---|---|---|")
    are_equal = True
    for (name, precision), *ranks in zip(rows, *results, strict=True):
        hashes = [rank_zero["hash"][:12] for rank_zero, *_ in ranks]
        is_equal = len(set(hashes)) == 1
        are_equal &= is_equal
        verdict = f"yes, `{hashes[0]}`" if is_equal else f"NO: {', '.join(hashes)}"
        print(f"| {name} | {precision} | {given.steps} | {verdict} |")
    return are_equal


def costs(given: argparse.Namespace, counts: Sequence[int]) -> bool:
    print(f"For a step, of {given.steps}: milliseconds of all processes' processors, milliseconds on the clock, and kB that a")
    print("process sends. exact / DDP with the same micro-batches; at one process DDP is no DDP, but accumulation.\n")
    print("| | processes | processor, ms | on the clock, ms | sent, kB |\n|---|---|---|---|---|")
    names = [name for name in COSTLY if any(text in name for text in given.only)]
    for name in names:
        for count in counts:
            print(f"| {name} | {count} | {' | '.join(cost(given, COSTLY[name], count))} |", flush=True)
    return True


def cost(given: argparse.Namespace, options: Sequence[str], count: int) -> list[str]:
    fixed = (*FIXED, "trainer.limit_val_batches=0", f"trainer.max_steps={given.steps + WARM_UP}", *options)
    kinds = (f"trainer.exact={given.workers}", f"trainer.accumulate_grad_batches={given.workers // count}")
    results = run(count, [[*fixed, kind] for _ in range(REPETITIONS) for kind in kinds])

    def least(kind: int, name: str, of_ranks: Any) -> float:
        return min(of_ranks(rank[name] for rank in ranks) for ranks in results[kind :: len(kinds)]) / given.steps

    figures = (("cpu", sum, 1e3, 0), ("wall", max, 1e3, 0), ("sent", max, 1e-3 / count, 0))
    return [
        " / ".join(f"{least(kind, name, of_ranks) * unit:,.{digits}f}" for kind in range(len(kinds)))
        for name, of_ranks, unit, digits in figures
    ]


def run(count: int, jobs: Sequence[Sequence[str]]) -> list[list[dict[str, Any]]]:
    """Trains each of the jobs, lists of overrides, in the same `count` processes; what each of the ranks has measured in it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jobs.json").write_text(json.dumps(jobs))
        run_ranks([sys.executable, __file__, "--rank-of", name], count)
        ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
    return [list(job) for job in zip(*ranks, strict=True)]


def train_all(folder: Path) -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rank, count = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if count > 1:
        dist.init_process_group("gloo")
    results: list[dict[str, Any]] = []
    for number, overrides in enumerate(json.loads((folder / "jobs.json").read_text())):
        run_dir = folder / str(number)
        more = (f"datamodule.cache_dir={folder}/tokens",) if "datamodule=text" in overrides else ()
        cfg = compose(*overrides, *more, f"trainer.devices={count}", f"run_dir={run_dir}")
        datamodule, module, trainer = build(cfg, Plan.from_config(cfg))
        trainer.callbacks.insert(0, clock := Clock())  # pyright: ignore[reportAttributeAccessIssue]
        trainer.fit(module, datamodule)
        results.append(clock.measured() | ({"hash": hash_in(run_dir)} if rank == 0 else {}))
    (folder / f"{rank}.json").write_text(json.dumps(results))
    if count > 1:
        dist.barrier()
        dist.destroy_process_group()


class Clock(Callback):
    """Reads the clocks and the loopback's counter of bytes after the first steps and after the last."""

    def __init__(self) -> None:
        self.readings: dict[int, tuple[float, float, int]] = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step in (WARM_UP, trainer.max_steps) and trainer.global_step not in self.readings:
            lines = Path("/proc/net/dev").read_text().splitlines()
            sent = next(int(line.split()[9]) for line in lines if line.split()[0] == "lo:")
            self.readings[trainer.global_step] = (time.process_time(), time.perf_counter(), sent)

    def measured(self) -> dict[str, float]:
        first, last = self.readings.values()
        return {name: b - a for name, a, b in zip(("cpu", "wall", "sent"), first, last, strict=True)}


def hash_in(run_dir: Path) -> str:
    digest = hashlib.sha256()
    _add(digest, torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True))
    return digest.hexdigest()


def train(run_dir: Path, devices: int, *overrides: str) -> str:
    """Trains by the command line. Returns the hash of the last checkpoint."""
    where = () if any(override.startswith("resume=") for override in overrides) else (f"hydra.run.dir={run_dir}",)
    command = [sys.executable, str(ROOT / "train.py"), *overrides, f"trainer.devices={devices}", *where]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=run_dir.parent, timeout=1800, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return hash_in(run_dir)


def survives(given: argparse.Namespace) -> bool:
    overrides = (
        *FIXED,
        *MODELS["mlp, AdamW, dropout, EMA, ragged tail"],
        f"trainer.exact={given.workers}",
        "fresh_processes=false",
    )
    overrides += (f"trainer.max_steps={20 * given.kills}", "guards.checkpoint.every_n_steps=1")
    draw, counts, killed = random.Random(0), [n for n in COUNTS if n <= given.workers], []
    with TemporaryDirectory() as folder:
        whole = train(Path(folder) / "whole", 1, *overrides)
        run_dir, arguments = Path(folder) / "killed", (*overrides, f"hydra.run.dir={folder}/killed")
        while len(killed) < given.kills:
            devices = draw.choice([n for n in counts if not killed or n != killed[-1][0]])
            if (steps := _kill(run_dir, arguments, devices, draw.uniform(0, 1.0))) is None:
                break
            killed.append((devices, steps))
            arguments = (f"resume={run_dir}", "guards.checkpoint.every_n_steps=1")
        ended = train(run_dir, 2, *arguments)
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
        for key in (key for key in value if key not in PLACES):
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
