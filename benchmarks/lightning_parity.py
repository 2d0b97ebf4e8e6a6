"""Lightning's own comparison of its loop with one of plain torch, `tests/parity_pytorch`: with its loop, and with ours.

    python benchmarks/lightning_parity.py REPO --data FOLDER [--repeats 3] [--models RNN MNIST] [--tag 2.6.5] [--work FOLDER]

REPO is a clone of github.com/Lightning-AI/pytorch-lightning, or its git directory, of which the tests are taken; they stay in
the folder of --work. FOLDER holds torchvision's MNIST, which theirs is made from. Each test trains three times with a Trainer and
three times without, and asks that the losses are equal to five places and that an epoch takes no longer than a threshold of
seconds more. Taken out are its mark that skips it without a GPU, and without one the question about a GPU's memory. With either
loop in turn, in a process of its own with one thread.

Writes benchmarks/lightning_parity.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from hardware import processor
from lightning_suite import LOOPS, git, take
from run import heading
from torchvision.datasets import MNIST

HERE = Path(__file__).parent
TEST = "tests/parity_pytorch/test_basic_parity.py"
TAKEN = ("tests/parity_pytorch", "tests/tests_pytorch/__init__.py", "tests/tests_pytorch/helpers", "pyproject.toml")
NEEDS_GPU = '@pytest.mark.skipif(not torch.cuda.is_available(), reason="test requires GPU machine")\n'


def main() -> None:
    arguments = _arguments()
    work = Path(arguments.work).absolute()
    _prepare(work, arguments.repo, arguments.tag, arguments.data)
    top = f"{heading(processor())}\n\nTheir tests are of {arguments.tag} ({_commit(arguments.repo, arguments.tag)})."
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(arguments.repeats):
        for model in arguments.models:
            for side in LOOPS:
                rows.setdefault((model, side), []).append(_run(work, model, side))
                (HERE / "lightning_parity.md").write_text(_report(top, rows))
    print(_report(top, rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo")
    parser.add_argument("--data", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=("RNN", "MNIST"), default=["RNN", "MNIST"])
    parser.add_argument("--tag", default="2.6.5")
    parser.add_argument("--work", default="/tmp/lightning_parity")
    return parser.parse_args()


def _commit(repo: str, tag: str) -> str:
    return git(repo, "rev-parse", f"{tag}^{{commit}}").decode()[:12]


def _prepare(work: Path, repo: str, tag: str, data: str) -> None:
    """Raises ValueError where their test has no longer the mark that is taken out."""
    take(repo, tag, work, TAKEN)
    text = (work / TEST).read_text()
    if text.count(NEEDS_GPU) != 1:
        raise ValueError(f"{TEST} of {tag} has not the line {NEEDS_GPU.strip()}")
    (work / TEST).write_text(text.replace(NEEDS_GPU, ""))
    folder = work / "Datasets" / "MNIST" / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    for name, train in (("training.pt", True), ("test.pt", False)):
        images = MNIST(data, train=train)
        torch.save((images.data, images.targets), folder / name)


def _run(work: Path, model: str, side: str) -> dict[str, Any]:
    """What lightning_parity_plugin has written down, and the test's outcome."""
    record, outcomes = work / "record.json", work / "outcomes"
    for path in (record, outcomes):
        path.unlink(missing_ok=True)
    here = {"LOCKSTEP_PARITY": str(record), "LOCKSTEP_OUTCOMES": str(outcomes), "LOCKSTEP_LOOP": LOOPS[side]}
    here |= {"PYTHONPATH": os.pathsep.join([".", str(HERE)]), "OMP_NUM_THREADS": "1"}
    plugins = [item for name in ("lightning_suite_plugin", "lightning_parity_plugin") for item in ("-p", name)]
    options = ["-q", *plugins, "-p", "no:cacheprovider", "--color=no", "--tb=short", "-k", f"ParityModule{model}"]
    command = [sys.executable, "-m", "pytest", *options, TEST.removeprefix("tests/")]
    ended = subprocess.run(
        command, cwd=work / "tests", env=os.environ | here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if not record.is_file():
        sys.exit(ended.stdout)
    lines = [line.split("\t") for line in outcomes.read_text().splitlines()]
    short, all_steps = next(line[1].split() for line in lines if line[0] == "steps")
    return json.loads(record.read_text()) | {"outcome": lines[0][0], "steps": f"{short} of {int(short) + int(all_steps)}"}


def _report(top: str, rows: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    lines = [
        "# Lightning's own test of its speed",
        "",
        top,
        "",
        "Seconds an epoch, of the second and third training of each test, medians, with the distance of the quartiles behind",
        "them; `more` is by the mean of a test's trainings, as it asks. A GPU's memory, which it also compares, is not asked for",
        "without one.",
        "",
        "| their model | its loop | plain torch | Trainer | more | threshold | met | losses equal | passed | short steps |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (model, side), runs in rows.items():
        plain, trained = ([time for run in runs for time in run[kind]] for kind in ("plain", "trainer"))
        more = [run["more"] for run in runs]
        cells = [model, "Lightning's" if side == "stock" else "ours", *(_cell(values) for values in (plain, trained, more))]
        wins = (sum(wins) for wins in zip(*map(_wins, runs), strict=True))
        cells += [str(runs[0]["threshold"]), *(f"{count} of {len(runs)}" for count in wins), runs[-1]["steps"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _wins(run: dict[str, Any]) -> tuple[bool, bool, bool]:
    return run["more"] < run["threshold"], run["equal"], run["outcome"] == "passed"


def _cell(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({high - low:.3f})"


if __name__ == "__main__":
    main()
