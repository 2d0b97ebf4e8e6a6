"""What a slow link costs a training step, held against what the communication model says of it.

    python benchmarks/slow_link.py [--rates 1000 300 100 30] [--delays 0] [overrides of train.py]

Two hosts on one machine (benchmarks/two_hosts.py: network namespaces, a link whose rate `tc` sets), a process on each, over gloo,
started by scripts/torchrun_multinode.sh. On each link scripts/allreduce.py measures latency and bandwidth; with the step of one
process alone at the same batch these predict a step by the ring model of docs/scaling-report.md, with no overlap: the gradients
of this MLP are one message. The prediction stands beside the step that two processes take on that link. Writes
benchmarks/slow_link.md. Needs root, iproute2, and for delays a kernel with netem.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hardware import processor
from run import heading
from two_hosts import Hosts, two_hosts, why_not

ROOT = Path(__file__).resolve().parents[1]
STEPS = 40
PATIENCE = 300  # seconds
TRAIN = ["trainer=cpu", "model=mlp", "datamodule=synthetic_images", "datamodule.shape=[1,28,28]", "datamodule.augment=null"]
TRAIN += [
    "datamodule.batch_size=64",
    f"trainer.max_steps={STEPS}",
    "trainer.enable_progress_bar=false",
    "logger=csv",
    "test=false",
]
TRAIN += ["optimized_metric=train/loss", "~callbacks", "guards.checkpoint=null", "guards.watchdog=null"]
COLUMNS = (
    "link, Mbit/s",
    "delay, ms",
    "latency, µs",
    "bandwidth, Mbit/s",
    "step predicted, ms",
    "step measured, ms",
    "measured / predicted",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1000, 300, 100, 30], help="of the link, in Mbit/s")
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0], help="each way, in ms")
    parser.add_argument("--seconds", type=float, default=20, help="to measure an all-reduce in, of all sizes")
    arguments, overrides = parser.parse_known_args()
    if (reason := why_not()) is not None:
        parser.error(reason)
    with two_hosts() as hosts:
        alone = trained(hosts, 1, overrides)
        gradients = 4 * alone["parameters"]
        step = alone["train_time"] / alone["steps"]
        rows = []
        for rate in arguments.rates:
            for delay in arguments.delays:
                hosts.slow_down(rate, delay)
                link = measured(hosts, arguments.seconds)
                two = trained(hosts, 2, overrides)
                took = two["train_time"] / two["steps"]
                expected = step + gradients / link["bandwidth"] + 2 * link["latency"]  # a ring of two
                rows.append(
                    (rate, delay, 1e6 * link["latency"], 8e-6 * link["bandwidth"], 1e3 * expected, 1e3 * took, took / expected)
                )
                print(dict(zip(COLUMNS, rows[-1], strict=True)), file=sys.stderr, flush=True)
                write(rows, step, gradients)


def measured(hosts: Hosts, seconds: float) -> dict[str, float]:
    """By scripts/allreduce.py, over both: `latency` in seconds, `bandwidth` in bytes a second."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "link.json"
        program = [ROOT / "scripts" / "allreduce.py", "--backend=gloo", f"--seconds={seconds:g}", "--largest=4", f"--json={file}"]
        run(hosts, 2, program, Path(folder))
        return json.loads(file.read_text())["all"]


def trained(hosts: Hosts, count: int, overrides: list[str]) -> dict[str, Any]:
    """The record of a run on so many of them."""
    with tempfile.TemporaryDirectory() as folder:
        where = f"hydra.run.dir={folder}/run"
        run(hosts, count, [*TRAIN, *overrides, where], Path(folder))
        return json.loads((Path(folder) / "run" / "metrics.json").read_text())


def run(hosts: Hosts, count: int, arguments: list[Any], folder: Path) -> None:
    fixed = {
        "HOSTS": str(count),
        "RUN_ID": folder.name,
        "MAX_RESTARTS": "0",
        "PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT}/src",
    }
    outputs = [folder / f"host{number}.txt" for number in range(count)]
    processes = [hosts.launch(number, outputs[number], *arguments, **fixed) for number in range(count)]
    codes = [process.wait(PATIENCE) for process in processes]
    if any(codes):
        sys.exit("\n".join([f"{arguments} ended with {codes}", *(path.read_text() for path in outputs)]))


def write(rows: list[tuple[float, ...]], step: float, gradients: int) -> None:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for rate, delay, *figures, ratio in rows:
        lines.append(f"| {rate:g} | {delay:g} | {' | '.join(f'{figure:,.1f}' for figure in figures)} | {ratio:.2f} |")
    facts = f"{STEPS} steps of 64 samples per process; {gradients / 1024:,.0f} KiB of gradients; one process alone: "
    facts += f"{1e3 * step:.1f} ms a step. Load of the machine at the end: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores."
    (ROOT / "benchmarks" / "slow_link.md").write_text("\n\n".join([heading(processor()), facts, "\n".join(lines)]) + "\n")


if __name__ == "__main__":
    main()
