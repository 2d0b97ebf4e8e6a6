"""The table of benchmarks/parity.md: shipped models, 2 to 4 processes against one, both precisions, two optimizers.

    python benchmarks/parity_table.py > benchmarks/parity.md
    python benchmarks/parity_table.py vit gpt_nano lora fsdp tensor_parallel mesh --precisions 64-true
        > benchmarks/parity_transformers.md

On digits, a GPT on the standard library's sources, on the CPU, BatchNorm synchronised. Each row is one
`python scripts/parity.py OPTIONS`.
"""

import argparse
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from hardware import processor
from omegaconf import DictConfig

from lockstep.extras.parity.comparison import Comparison, compare
from lockstep.extras.parity.processes import Processes
from lockstep.extras.parity.sides import Sides
from lockstep.runs.composition import compose

FIXED = ("trainer=cpu", "model/lr_scheduler=constant", "datamodule.augment=null")
BATCH = {"mlp": 48, "cnn": 48, "resnet18": 24, "vit": 24}  # samples; ResNet-18 takes a second a step in float64 here
WINDOWS = 12  # of a language model
SMALL = ("model.net.width=32", "model.net.depth=2")
GPT = ("model=gpt_nano", *SMALL, "datamodule=text", "datamodule.context=64", "trainer.limit_val_batches=10")
GPT += ("optimized_metric=val/loss", "optimized_mode=min", "test=false")
DIVIDED = (*GPT, "trainer/strategy=tensor_parallel", "trainer/plan=gpt")
OPTIONS = {
    "vit": ("model=vit", *SMALL),
    "gpt_nano": GPT,
    "lora": (*GPT, "model/adapt=lora"),
    "fsdp": (*GPT, "trainer/strategy=fsdp"),
    "tensor_parallel": (*DIVIDED, "trainer.strategy.tensor_parallel_size=${trainer.devices}"),
    "mesh": (*DIVIDED, "trainer.strategy.tensor_parallel_size=2"),
}
DEVICES = {"fsdp": (2, 4), "tensor_parallel": (2, 4), "mesh": (4,)}
# With SGD's shipped rate of 0.05 rounding alone moves the weights of a ResNet-18 by 2e-9 in 50 steps of so small a batch.
RATE = {("resnet18", "sgd"): "model.optimizer.lr=0.005"}
NOTES = """
`equal but at ReLU boundaries`: where nothing but gradients differ by more than 1e-3 in float32, the same steps are compared
again in float64, and are equal there: a unit's input lay within rounding of its ReLU's boundary. In float32 ResNet-18 amplifies
rounding until after 50 steps the control's weights have nothing to do with the reference's: there the tolerance of the weights
tells nothing, the single steps do.
"""
QUANTITIES = ("loss", "gradients", "buffers", "validation metrics", "weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mlp", "cnn", "resnet18"], help=f"of {', '.join(BATCH | OPTIONS)}")
    parser.add_argument("--precisions", nargs="+", default=["64-true", "32-true"])
    arguments = parser.parse_args()
    command = shlex.join(["python", "benchmarks/parity_table.py", *sys.argv[1:]])
    print(f"`{command}`; torch {version('torch')}, lightning {version('lightning')},")
    print(f"Python {platform.python_version()}, {platform.machine()}, on two cores of {processor()}.\n")
    print(f"Each row is `python scripts/parity.py {' '.join(FIXED)} OPTIONS`: N processes")
    print("against one. The numbers are the largest max|a-b| / max|a| over all tensors and 50 steps, the control's in brackets.")
    print(NOTES if "resnet18" in arguments.models else "")
    print(f"| options | {' | '.join(QUANTITIES)} | weights' tolerance | verdict |\n|---|{'---|' * (len(QUANTITIES) + 2)}")
    for model in arguments.models:
        for devices in DEVICES.get(model, (2, 3, 4)):
            for precision in arguments.precisions:
                for optimizer in ("sgd", "adam"):
                    options = [*OPTIONS.get(model, (f"model={model}",)), f"trainer.devices={devices}"]
                    options += [f"datamodule.global_batch_size={BATCH.get(model, WINDOWS)}"]
                    options += [f"parity.precision={precision}", f"model/optimizer={optimizer}"]
                    options += [RATE[model, optimizer]] if (model, optimizer) in RATE else []
                    print(row(options, compared(*options)), flush=True)


def compared(*options: str) -> Comparison:
    def composed(more: Sequence[str] = ()) -> DictConfig:
        return compose(*FIXED, *options, *more, config_name="parity")

    sides = Sides.of(composed(), composed)
    with TemporaryDirectory() as folder, Processes(sides.processes, Path(folder)) as processes:
        comparison = compare(sides, processes)
    if comparison.failure is not None:
        raise comparison.failure
    return comparison


def row(options: list[str], comparison: Comparison) -> str:
    rows = {row.quantity: row for row in comparison.rows}
    cells = [f"{_short(rows[name].difference)} ({_short(rows[name].control)})" if name in rows else "" for name in QUANTITIES]
    verdict = (
        "not equal" if not comparison.equal else "equal but at ReLU boundaries" if comparison.at_relu_boundaries else "equal"
    )
    tolerance = f"{rows['weights'].tolerance:.0e}" if "weights" in rows else ""  # of trainings whose steps are equal
    return f"| `{' '.join(options)}` | {' | '.join(cells)} | {tolerance} | {verdict} |"


def _short(value: float) -> str:
    return f"{value:.0e}" if value else "0"


if __name__ == "__main__":
    main()
