"""The memory that each process takes to train a model whole, in parts, with divided layers, and with activations computed again.

    python benchmarks/memory_of_parts.py

A GPT of 25 million parameters (width 512, 8 layers) in float32 with AdamW, on processes over gloo, one thread each: the largest
resident memory of a process during the second and third step, less what it had before the model was built (Linux:
/proc/self/clear_refs). Memory that is given back goes back to the system (MALLOC_MMAP_THRESHOLD_), as on a GPU to its allocator.
Writes benchmarks/memory_of_parts.md.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hardware import processor
from measuring import run_ranks
from run import heading

ROOT = Path(__file__).resolve().parents[1]
MODEL = ["model=gpt", "model.net.width=512", "model.net.depth=8", "model.net.heads=8", "model/optimizer=adamw"]
FIXED = [
    *MODEL,
    "datamodule=text",
    f"datamodule.paths=[{ROOT / 'docs'}]",
    "trainer=cpu",
    "trainer.max_steps=3",
    "trainer.limit_val_batches=0",
    "test=false",
    "~callbacks",
]
FIXED += [
    "optimized_metric=train/loss",
    "optimized_mode=min",
    "logger=csv",
    "guards.checkpoint=null",
    "trainer.enable_progress_bar=false",
]
SHORT, LONG = (["datamodule.context=64", "datamodule.batch_size=1"], ["datamodule.context=512", "datamodule.batch_size=4"])
AGAIN = ["callbacks=activation_checkpointing", "callbacks.activation_checkpointing.match='layers.[0-9]+$'"]
FSDP, DIVIDED = ["trainer/strategy=fsdp"], ["trainer/strategy=tensor_parallel", "trainer/plan=gpt"]
ROWS: list[tuple[str, int, list[str]]] = [
    ("whole (DDP)", 2, SHORT),
    ("`fsdp`", 2, [*SHORT, *FSDP]),
    ("`fsdp`", 4, [*SHORT, *FSDP]),
    ("`tensor_parallel`, 2 for a layer", 2, [*SHORT, *DIVIDED]),
    ("`fsdp`, 4 windows of 512", 2, [*LONG, *FSDP]),
    ("the same, activations computed again", 2, [*LONG, *FSDP, *AGAIN]),
]


def main() -> None:
    if "RANK" in os.environ:
        measure(sys.argv[1:])
        return
    lines = [heading(processor()), "", "| | processes | MiB of a process, at most |", "|---|---|---|"]
    for name, processes, options in ROWS:
        result = started(processes, options)
        lines.append(f"| {name} | {processes} | {max(result):,.0f} |")
        print(lines[-1], flush=True)
    (ROOT / "benchmarks" / "memory_of_parts.md").write_text("\n".join(lines) + "\n")


def started(processes: int, options: list[str]) -> list[float]:
    """What each rank has measured."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *FIXED, f"trainer.devices={processes}", *options]
        run_ranks(command, processes, FOLDER=folder, MALLOC_MMAP_THRESHOLD_="65536")
        return [json.loads(path.read_text()) for path in Path(folder).glob("*.mib")]


def measure(overrides: list[str]) -> None:
    import torch
    import torch.distributed as dist
    from lightning import Callback

    from lockstep.build import build
    from lockstep.config.plan import Plan
    from lockstep.runs.composition import compose

    class FromTheSecondStep(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if trainer.global_step == 1:
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(os.environ["FOLDER"])
    cfg = compose(*overrides, f"run_dir={folder}", f"datamodule.cache_dir={folder}")
    before = resident("VmRSS")
    built: Any = build(cfg, Plan.from_config(cfg))
    datamodule, model, trainer = built
    trainer.callbacks.append(FromTheSecondStep())
    trainer.fit(model, datamodule)
    (folder / f"{dist.get_rank()}.mib").write_text(json.dumps((resident("VmHWM") - before) / 1024))
    dist.barrier()
    dist.destroy_process_group()


def resident(name: str) -> int:
    """KiB, by /proc/self/status."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))


if __name__ == "__main__":
    main()
