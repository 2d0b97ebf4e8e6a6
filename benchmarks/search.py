"""The table of benchmarks/search.md: does a search find a better learning rate than the default, and sooner than chance?

    python benchmarks/search.py SEARCH_DIR [--seeds 5] [--trials 20] > benchmarks/search.md

The MLP on digits for two epochs: once at the default rate, and in a search by TPE and one at random over rates between 1e-4 and
1e-1. Each seed is another split of the data, other weights and another search. The best trial is the one of the best val/acc;
its test/acc, which no search has seen, is of that epoch. SEARCH_DIR keeps the sweeps; run again, they go on.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import optuna
import torch
from hardware import processor

from lockstep.atomic_files import read_json
from lockstep.extras.search.study import load_study

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = ("model=mlp", "trainer.accelerator=cpu", "trainer.max_epochs=2", "logger=csv", "callbacks.pictures=null")
SAMPLERS = {"TPE": "TPESampler", "at random": "RandomSampler"}


class Outcome(NamedTuple):
    """Of one run, or of the best trial of a search; `first`: the number of trials it took to do better than the default."""

    lr: float
    val: float
    test: float
    first: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="SEARCH_DIR")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    made = f"Optuna {optuna.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {processor()}"
    print(f"`python benchmarks/search.py SEARCH_DIR --seeds {given.seeds} --trials {given.trials}`; {made}.\n")
    columns = ["seed", "rate", "lr", "val/acc", "test/acc", "trials until better than the default"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    results: dict[str, list[Outcome]] = {}
    for seed in range(given.seeds):
        default = run_default(given.folder / f"default_{seed}", seed)
        row(seed, "default", default, results)
        for name, sampler in SAMPLERS.items():
            row(seed, name, run_search(given.folder / f"{sampler}_{seed}", sampler, seed, given.trials, default.val), results)
    for name, result in results.items():
        lr, val, test = (statistics.fmean(values) for values in zip(*(one[:3] for one in result), strict=True))
        row("mean", name, Outcome(lr, val, test), {})


def row(seed: object, name: str, result: Outcome, results: dict[str, list[Outcome]]) -> None:
    results.setdefault(name, []).append(result)
    first = "never" if result.first is None and name != "default" and seed != "mean" else result.first or ""
    print(f"| {seed} | {name} | {result.lr:.2g} | {result.val:.4f} | {result.test:.4f} | {first} |", flush=True)


def run_default(folder: Path, seed: int) -> Outcome:
    sweep(folder, f"seed={seed}")
    return read_run(next(folder.glob("*/metrics.json")).parent)


def run_search(folder: Path, sampler: str, seed: int, trials: int, default: float) -> Outcome:
    settings = {"n_trials": trials, "sampler._target_": f"optuna.samplers.{sampler}", "sampler.seed": seed}
    sweep(folder, "sweep=optuna", f"seed={seed}", *(f"hydra.sweeper.{name}={value}" for name, value in settings.items()))
    study = load_study(folder)
    better = (trial.number + 1 for trial in study.trials if trial.value is not None and trial.value > default)
    return read_run(folder / study.best_trial.user_attrs["directory"])._replace(first=next(better, None))


def read_run(directory: Path) -> Outcome:
    record = read_json(directory / "metrics.json") or {}
    return Outcome(record["lr"], record["metrics"]["val/acc"], record["metrics"]["test/acc"])


def sweep(folder: Path, *overrides: str) -> None:
    where = f"hydra.sweep.dir={folder.absolute()}"
    command = [sys.executable, str(ROOT / "train.py"), "-m", *overrides, *OPTIONS, where]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=3600, env=os.environ | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
