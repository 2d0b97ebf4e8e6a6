"""What sending less than whole gradients costs in accuracy, and gains in bytes and time: two processes over gloo.

    python benchmarks/communication.py [--data digits mnist] [--seeds 3] [overrides of train.py]

The shipped MLP on digits (30 epochs of 10 steps) and on MNIST (2 epochs of 421), a global batch of 128, every variant and seed in
turn in the same two processes, one thread each. Writes benchmarks/communication_HARDWARE.md, and the raw rows beside it. Accuracy
is that of the test after the last step; the bytes are those that a process gives to all-reduces, the whole gradients that DDP
itself reduces included.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardware import processor
from measuring import run_ranks
from run import heading, slug

ROOT = Path(__file__).resolve().parents[1]
KEY = "trainer.strategy.communication"
VARIANTS: dict[str, list[str]] = {
    "whole gradients": [],
    "`fp16`": ["trainer/communication=fp16"],
    "`bf16`": ["trainer/communication=bf16"],
    **{f"`power_sgd`, rank {n}": ["trainer/communication=power_sgd", f"{KEY}.rank={n}"] for n in (1, 2, 8)},
    **{f"`local_sgd`, period {n}": ["trainer/communication=local_sgd", f"{KEY}.period={n}"] for n in (2, 8, 32)},
    "whole gradients, `bf16-mixed`": ["trainer.precision=bf16-mixed"],
}
DATA = {
    "digits": ["datamodule=digits", "trainer.max_epochs=30"],
    "mnist": ["datamodule=mnist", f"datamodule.data_dir={ROOT / 'data'}", "trainer.max_epochs=2"],
}
FIXED = ["trainer=cpu", "trainer.devices=2", "model=mlp", "datamodule.global_batch_size=128", "logger=csv", "~callbacks"]
FIXED += ["trainer.enable_progress_bar=false", "guards.checkpoint=null"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3)
    arguments, overrides = parser.parse_known_args()
    if "RANK" in os.environ:
        train_all(arguments.data, arguments.seeds, overrides)
        return
    run_ranks([sys.executable, *sys.argv], 2)


def train_all(data: list[str], seeds: int, overrides: list[str]) -> None:
    """In each rank. A table is written after each round, so that a run that is ended early leaves those it had."""
    import torch.distributed as dist

    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    rows = []
    for name in data:
        for seed in range(seeds):
            for variant, options in VARIANTS.items():
                result = trained([*FIXED, *DATA[name], f"seed={seed}", *options, *overrides])
                rows.append({"data": name, "variant": variant, "seed": seed} | result)
                if dist.get_rank() == 0:
                    print(rows[-1], file=sys.stderr, flush=True)
            if dist.get_rank() == 0:
                write(rows)
    dist.barrier()
    dist.destroy_process_group()


def write(rows: list[dict[str, Any]]) -> None:
    path = ROOT / "benchmarks" / f"communication_{slug(processor())}.md"
    path.write_text("\n\n".join([heading(processor()), *(table(data, rows) for data in {row["data"]: 0 for row in rows})]) + "\n")
    path.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


def trained(overrides: list[str]) -> dict[str, float]:
    import torch

    from lockstep.build import build
    from lockstep.config.plan import Plan
    from lockstep.runs.composition import compose

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cfg = compose(*overrides, f"run_dir={folder}")
        datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
        task: Any = model
        with counted() as given:
            trainer.fit(model, datamodule)
        steps = trainer.global_step
        is_ddp_s = getattr(trainer.strategy, "communication", None) is None
        by_ddp = sum(p.numel() * p.element_size() for p in model.parameters()) if is_ddp_s else 0
        trainer.test(model, datamodule, verbose=False)
    times = {"wall": task.train_time / steps * 1e6, "cpu": task.train_cpu_time / steps * 1e6}
    return {"accuracy": 100 * task.results["test/acc"], "kib": (sum(given) / steps + by_ddp) / 1024} | times


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes of each tensor that Python code gives to an all-reduce meanwhile: DDP's own are not seen from here."""
    import torch.distributed as dist

    given: list[int] = []
    original = dist.all_reduce

    def all_reduce(tensor: Any, *arguments: Any, **named: Any) -> Any:
        given.append(tensor.numel() * tensor.element_size())
        return original(tensor, *arguments, **named)

    dist.all_reduce = all_reduce
    try:
        yield given
    finally:
        dist.all_reduce = original


def table(data: str, rows: list[dict[str, Any]]) -> str:
    """Means over the seeds; of the accuracy the standard deviation too."""
    seeds = len({row["seed"] for row in rows if row["data"] == data})
    lines = [
        f"| {data}, {seeds} seed{'s' * (seeds > 1)} | test accuracy, % | KiB a step | µs a step | µs of processor |",
        "|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(row["variant"] for row in rows if row["data"] == data):
        result = [row for row in rows if (row["data"], row["variant"]) == (data, variant)]
        kib, wall, cpu = (statistics.mean(row[name] for row in result) for name in ("kib", "wall", "cpu"))
        accuracies = [row["accuracy"] for row in result]
        spread = f" ± {statistics.stdev(accuracies):.2f}" if len(result) > 1 else ""
        lines.append(f"| {variant} | {statistics.mean(accuracies):.2f}{spread} | {kib:,.1f} | {wall:,.0f} | {cpu:,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
