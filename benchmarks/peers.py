"""The step of `python train.py` beside that of other libraries' loops, of the same nets on the same data in memory.

    PYTHON benchmarks/peers.py [--repeats 3] [--nets mlp cnn] [--steps 500] [overrides of train.py]

PYTHON is that of a virtual environment with this package and what is compared, which is none of its dependencies:

    .venv/bin/python -m venv /tmp/peers
    site=lib/python3.11/site-packages
    echo "import site; site.addsitedir('$PWD/.venv/$site')" > /tmp/peers/$site/peers.pth
    /tmp/peers/bin/pip install accelerate transformers

What is not installed is left out, and named. Composer 0.32.1 accepts no torch above 2.7.0. Each library's program is
competitors/peer.py, in processes of its own, one thread a process; their steps are made in turns of a fifth of a second
(measuring.py). Writes benchmarks/peers.md.
"""

import argparse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hardware import processor
from measuring import Sample
from run import heading, measured_round, table
from suites import FLUSH, STEPS, Competitor, Suite, by_record, train_py

HERE = Path(__file__).parent
# By the name that competitors/peer.py knows: what the table says, and the distribution.
PEERS = {
    "bare": ("a bare loop", "torch"),
    "fabric": ("Lightning Fabric", "lightning"),
    "accelerate": ("Accelerate", "accelerate"),
    "transformers": ("Hugging Face's Trainer", "transformers"),
}
STEPS_OF = {"mlp": 1500, "cnn": 100}
ABOUT = {
    "mlp": "The MLP (784-256-10) on 28x28 images, batches of 64.",
    "cnn": "The CNN on 28x28 images, batches of 64. Only `train.py` synchronises its BatchNorm layers.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of each, in turn")
    parser.add_argument("--nets", nargs="+", choices=ABOUT, default=list(ABOUT))
    parser.add_argument("--steps", type=int, help=f"of each; by default {STEPS_OF}")
    arguments, overrides = parser.parse_known_args()
    rounds: dict[str, tuple[list[Competitor], dict[str, list[Sample]]]] = {}
    for net in arguments.nets:
        competitors = [one for count in (1, 2) for one in _competitors(net, count, arguments.steps, overrides)]
        rounds[net] = competitors, {one.name: [] for one in competitors}
    for _ in range(arguments.repeats):
        for competitors, samples in rounds.values():
            for one, sample in measured_round(competitors, in_turns=True):
                samples[one.name].append(sample)
        (HERE / "peers.md").write_text(_report(rounds))
    print(_report(rounds))


def _competitors(net: str, processes: int, steps: int | None, overrides: list[str]) -> list[Competitor]:
    steps = steps or STEPS_OF[net]
    sizes = {"net": net, "shape": "1,28,28", "batch-size": 64, "steps": steps, "val-batches": 0}
    options = [item for name, value in sizes.items() for item in (f"--{name}", str(value))]
    ending = f", {processes} process{'es' * (processes > 1)}"
    result = [
        Competitor(title + ending, by_record("peer", [name, *options]), processes, name == "bare", starts_as_ranks=True)
        for name, (title, distribution) in PEERS.items()
        if _version(distribution) is not None
    ]
    data = ("datamodule=synthetic_images", "datamodule.shape=[1,28,28]", "datamodule.batch_size=64", "datamodule.val_length=64")
    fixed = ("trainer=cpu", "trainer.max_epochs=1", f"trainer.devices={processes}", "test=false", f"model={net}", FLUSH, *data)
    fixed += (f"datamodule.length={steps * 64 * processes}", "+callbacks.stopwatch._target_=steady_callback.Steady")

    def shipped(record: Path) -> list[str]:
        return train_py(record, *fixed, *overrides)

    return [*result, Competitor(f"`python train.py`{ending}", shipped, processes)]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _report(rounds: dict[str, tuple[list[Competitor], dict[str, list[Sample]]]]) -> str:
    versions = {title: _version(distribution) for title, distribution in PEERS.values()}
    installed = ", ".join(f"{title} {known}" for title, known in versions.items() if known)
    missing = [title for title, known in versions.items() if known is None]
    lines = [
        "# Steps of other libraries' loops",
        "",
        heading(processor()),
        f"{installed}; not installed: {', '.join([*missing, 'Composer'])}.",
        "",
        "The same net, batches, optimizer and data in memory for all; the first five steps are not timed, and nobody validates",
        "or saves meanwhile. `train.py` with all it does in a step by default: metrics, guards, logs. Medians, with the distance",
        "of the quartiles behind them; processor time is of all threads of rank zero. Those of as many processes run in turns of",
        "a fifth of a second. Denormal numbers are zero in all programs.",
    ]
    for net, (competitors, samples) in rounds.items():
        suite = Suite(ABOUT[net], STEPS, lambda _, found=competitors: found)
        lines += ["", f"## {ABOUT[net]}", "", table(suite, competitors, samples)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
