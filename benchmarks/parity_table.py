"""The last line of `lockstep parity` for shipped models and ways to share them:

    python benchmarks/parity_table.py [vit fsdp ...] [--steps 10] > benchmarks/parity.md

On digits, a GPT on the sources of Python's standard library, on CPUs in float64. Exit code 1 if a row's is not 0 (equal).
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from hardware import processor
from run import heading

ROOT = Path(__file__).resolve().parents[1]
FIXED = ("trainer=cpu", "model/lr_scheduler=constant", "datamodule.augment=null")
SMALL = ("model.net.width=32", "model.net.depth=2")
GPT = ("model=gpt_nano", *SMALL, "datamodule=text", "datamodule.context=64", "datamodule.global_batch_size=12")
GPT += ("trainer.limit_val_batches=10", "optimized_metric=val/loss", "optimized_mode=min", "test=false")
DIVIDED = (*GPT, "trainer/strategy=tensor_parallel", "trainer/plan=gpt", "trainer.strategy.tensor_parallel_size=2")
ROWS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {  # numbers of processes, options
    "mlp": ((2, 3, 4), ("model=mlp", "datamodule.global_batch_size=48")),
    "cnn": ((2, 3, 4), ("model=cnn", "datamodule.global_batch_size=48")),
    "resnet18": ((2,), ("model=resnet18", "datamodule.global_batch_size=24")),
    "vit": ((2, 3, 4), ("model=vit", *SMALL, "datamodule.global_batch_size=24")),
    "gpt_nano": ((2, 3, 4), GPT),
    "lora": ((2,), (*GPT, "model/adapt=lora")),
    "fsdp": ((2, 4), (*GPT, "trainer/strategy=fsdp")),
    "tensor_parallel": ((2, 4), DIVIDED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=[*ROWS], help=f"of {', '.join(ROWS)}")
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    fixed = (*FIXED, f"parity.steps={arguments.steps}")
    print(f"{heading(processor())}\n\nEach row is `lockstep parity {shlex.join(fixed)} OPTIONS`.\n")
    print("| options | exit code | last line |\n|---|---|---|", flush=True)
    codes: list[int] = []
    for counts, options in (ROWS[name] for name in arguments.rows):
        for count in counts:
            own = [*options, f"trainer.devices={count}"]
            command = [sys.executable, str(ROOT / "scripts" / "parity.py"), *fixed, *own]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            codes.append(done.returncode)
            last = [*done.stderr.splitlines(), *done.stdout.splitlines()][-1]
            print(f"| `{' '.join(own)}` | {done.returncode} | {last} |", flush=True)
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
