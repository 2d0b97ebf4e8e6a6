"""A plan's choice against the full grid, of real trainings:  python benchmarks/plan_grids.py OUT [--only NAME] [--data data]

Grid: each training of plan_trainings.py at 1, 2, 4, ... times its batch, several rates and three seeds, to its end.
Plan: sweep=plan of the same training with another seed; its jobs are trained in this process. Its budget is a fifth of the
grid's trainings, and twenty at most, as sweep=plan accepts.
Both are given the time of a step by the same made-up links (benchmarks/plan.py), for 1, 2, 4 and 8 devices: more than two cores
there are not, and a global batch gives the same losses on any number of devices. The target is the loss that the smallest
batch has at its best rate, over the seeds, after four tenths of the training.

What is validated is the average of the weights over some 25 steps of the smallest batch, and over as many samples of the others.

What counts, as it was written down before any of these trainings was run but one of each, at its smallest batch: all ten
trainings under all five links. The grid chooses by its three seeds, the plan by its own, and the time of both choices is
measured by other seeds, with which nothing was chosen: by the seeds that the grid's choice was the best of many with, it
looks better than it is. A plan's choice is as good as the grid's if its time is within 5%. The grid's choice is the most devices
each step up to which is worth its devices. A choice that is faster by more than 5% has more devices than are worth it: it is
counted apart, with its device-hours. The time by the grid's own three seeds stands beside it. The plan's rates are among those
that the grid chooses from. The trainings are of two kinds: those whose like (without the average) the method was made with, and
the last four, of which none was seen. benchmarks/plan.md has both counts.

Beside it stands what a second full grid chooses by three other seeds, timed as the plan's choice is: more than its count of
choices within 5% can't be asked of a plan. A choice is called the same where devices and batch are the grid's, and the rate is
nearest to the grid's of those that the grid was made with; that is counted apart.

The other seeds were six, and are twenty-four now, since by six the ratio of two times had a standard error as large as what is
judged. The error that stands beside a ratio is that of drawing the seeds anew from themselves (the bootstrap).

What is there in OUT already is not computed again: losses by training, batch, rate and seed, records of jobs, and plans.
"""

import argparse
import itertools
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support" / "models"))
from plan import COUNTS, LINKS, fitted  # pyright: ignore[reportAttributeAccessIssue]  # benchmarks/plan.py
from plan_trainings import ANOTHER, AVERAGED, OTHER_SEEDS, SEEDS, SETTINGS, Choice, Grid  # pyright: ignore[reportMissingImports]

from lockstep.atomic_files import write_json
from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.extras.plan.answer import AS_GOOD, sentence
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.record import content
from lockstep.extras.plan.search import LARGEST_BUDGET, Search, Settings
from lockstep.extras.plan.training import Training
from lockstep.extras.report.step_model import StepModel
from lockstep.runs.identity import Identity

ROOT = Path(__file__).resolve().parents[1]
SEED = 3  # of plans: none of the grids' own
DRAWS = 200  # of the seeds that choices are timed by


def slug(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def plan(name: str, link: str, out: Path, data: Path, budget: float, seed: int) -> dict[str, Any]:
    """What a plan of the setting says for the link, made where it is not there: with its jobs run in this process, in turn."""
    setting, file = SETTINGS[name], out / "plans" / f"{slug(name)}_{slug(link)}_{budget:g}_{seed}.json"
    if not file.is_file():
        constants = (
            *setting.composed(data),
            *AVERAGED,
            f"datamodule.batch_size={setting.batch}",
            "guards.watchdog=null",
            f"seed={seed}",
        )
        constants += (f"model.optimizer.lr={setting.rate}", f"trainer.max_epochs={setting.epochs}", "sweep=plan", "~logger")
        constants += ("trainer.enable_progress_bar=false", "guards.preemption=null")
        settings = Settings(budget=budget, largest=setting.largest, micro_batch=setting.micro_batch)
        jobs = InProcess(out / "jobs" / f"{slug(name)}_{seed}", constants)
        training = Training(jobs.cfg, jobs.plan, ())
        jobs.total = float(jobs.epoch() * setting.epochs)
        jobs.budget = settings.budget * jobs.total
        search = Search(training, settings, jobs, MadeUp(link), COUNTS)  # pyright: ignore[reportArgumentType]
        known, fitted, made = search.run()
        facts = {"batch": setting.batch, "noise_scale": search.noise_scales, "jobs": jobs.launched}
        facts["samples"] = {"training": jobs.total, "measured": jobs.spent, "of_a_point": search.every}
        file.parent.mkdir(exist_ok=True)
        write_json(file, content(sentence(made, setting.batch, jobs.spent / jobs.total), (), made, known, fitted, facts))
    return json.loads(file.read_text())


class MadeUp:
    """In the place of timings: those of a link."""

    def __init__(self, link: str) -> None:
        self.fit = fitted(LINKS[link], 0, True)

    def again(self) -> bool:
        return False


class InProcess(Jobs):
    """Jobs of a plan as train.py trains them, but in this process. Plans for several links share what has been trained, in a file
    of their folder, and each pays for it."""

    def __init__(self, directory: Path, constants: tuple[str, ...]) -> None:
        super().__init__(None, directory, False)  # pyright: ignore[reportArgumentType]
        self.constants, self.file = constants, directory / "records.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        rows = self.file.read_text().splitlines() if self.file.is_file() else []
        self.trained = {tuple(overrides): record for overrides, record in map(json.loads, rows)}
        self.cfg = self._composed(())
        self.plan = Plan.from_config(self.cfg)

    def _composed(self, overrides: Sequence[str]) -> Any:
        from in_process import composed  # pyright: ignore[reportMissingImports]

        return composed(*self.constants, *overrides, run_dir=self.directory / "run")

    def epoch(self) -> int:
        datamodule, _, trainer = build(self.cfg, self.plan)
        datamodule.setup("fit")  # pyright: ignore[reportOptionalMemberAccess]
        limit, samples = trainer.limit_train_batches, len(datamodule.splits.train)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        return int(limit * (samples // (self.plan.global_batch_size or 1))) * (self.plan.global_batch_size or 1)

    def launch(self, jobs: Sequence[list[str]]) -> list[dict[str, Any] | None]:
        self.launched += len(jobs)
        return [self._record(job) for job in jobs]

    def _record(self, job: list[str]) -> dict[str, Any]:
        if tuple(job) not in self.trained:
            self.trained[tuple(job)] = self._train(job)
            with self.file.open("a") as lines:
                lines.write(json.dumps([job, self.trained[tuple(job)]]) + "\n")
        return self.trained[tuple(job)]

    def _train(self, job: list[str]) -> dict[str, Any]:
        cfg = self._composed(job)
        folder = Path(cfg.run_dir)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        Identity(folder.name, [], [], None, None).write(folder)
        datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
        trainer.fit(model, datamodule)
        facts = [callback.facts() for callback in trainer.callbacks if hasattr(callback, "facts")]  # pyright: ignore[reportAttributeAccessIssue]
        return {key: value for own in facts for key, value in own.items() if key in ("loss_at_samples", "noise_scale")}


@dataclass(frozen=True)
class Verdict:
    """A choice beside the grid's: how much longer it takes, with the standard error, and the device-hours, by seeds that neither
    was chosen with; the time by the grid's own seeds; whether devices and batch are the grid's, and the rate is nearest to the
    grid's of those it has."""

    choice: str
    slower: float = math.inf
    error: float = math.nan
    hours: float = math.inf
    by_its_seeds: float = math.inf
    is_same: bool = False

    @classmethod
    def on(cls, grid: Grid, step: StepModel, choice: Choice | None, best: Choice) -> "Verdict":
        if choice is None:
            return cls("nothing can be said")
        drawn = numpy.random.default_rng(0).choice(OTHER_SEEDS, (DRAWS, len(OTHER_SEEDS))).tolist()
        measured = [grid, *(grid.on_seeds(seeds, {choice[1:], best[1:]}) for seeds in (OTHER_SEEDS, *drawn))]
        by_its_seeds, slower, *draws = (one.seconds(step, *choice) / one.seconds(step, *best) - 1 for one in measured)
        hours = (1 + slower) * choice[0] / best[0] - 1
        is_same = choice[:2] == best[:2] and grid.nearest(*choice[1:]) == grid.nearest(*best[1:])
        error = float(numpy.std(draws)) if math.isfinite(slower) else math.nan
        return cls(grid.words(choice), slower, error, hours, by_its_seeds, is_same)

    @property
    def word(self) -> str:
        return "miss" if self.slower > AS_GOOD else "faster" if self.slower < -AS_GOOD else ""

    @property
    def cells(self) -> tuple[str, ...]:
        words = ", ".join(filter(None, (self.word, "same" if self.is_same else "")))
        return self.choice, f"{self.slower:+.1%} ± {self.error:.1%}" if math.isfinite(self.slower) else "never", words


def summary(whose: str, verdicts: Sequence[Verdict]) -> str:
    words, same = [one.word for one in verdicts], sum(one.is_same for one in verdicts)
    also = sum(one.is_same or not one.word for one in verdicts)
    return (
        f"{whose}: {words.count('')} of {len(words)} within 5% of the grid's time to the target, {words.count('faster')} faster; "
        f"{same} are the same choice up to the distance of the grid's rates, which with those within 5% makes {also}."
    )


def compared(name: str, out: Path, data: Path, budget: float | None, seed: int) -> Iterator[tuple[str, Verdict, Verdict]]:
    """By link a row of the table, and the verdicts on the plan's choice and on that of another grid of three seeds. The rates of
    both are among the grid's here, for they may be better."""
    setting, file = SETTINGS[name], out / f"{slug(name)}.jsonl"
    grid, another = Grid(setting, file, data), Grid(setting, file, data, seeds=ANOTHER)
    plans = {link: plan(name, link, out, data, budget or _budget(grid), seed) for link in LINKS}
    for recorded in plans.values():
        for batch, rate in (pair for row in recorded["critical_batches"] for pair in row["best_rate"].items()):
            grid.add(int(batch) // setting.batch, rate)
    others = {link: another.choice(step) for link, step in LINKS.items()}
    for _, multiple, rate in others.values():
        grid.add(multiple, rate)
    for link, step in LINKS.items():
        recorded, best = plans[link], grid.choice(step)
        chosen, cost = recorded["chosen"], recorded["samples"]["measured"] / recorded["samples"]["training"] / grid.trainings
        own = (chosen["devices"], chosen["global_batch"] // setting.batch, chosen["lr"]) if chosen else None
        by_plan, by_another = (Verdict.on(grid, step, choice, best) for choice in (own, others[link]))
        seeds = 1 + max(one["repeat"] for one in recorded["branches"])
        cells = (
            f"{name}; {link}",
            grid.words(best),
            *by_plan.cells,
            f"{by_plan.hours:+.1%}",
            f"{by_plan.by_its_seeds:+.1%}",
            f"{seeds}",
            f"{cost:.1%}",
            *by_another.cells,
        )
        yield f"| {' | '.join(cells)} |", by_plan, by_another


def _budget(grid: Grid) -> float:
    """Of a plan, in trainings: a fifth of the grid's, and no more than sweep=plan accepts."""
    return min(LARGEST_BUDGET, 0.2 * grid.trainings)


def draw(names: Sequence[str], out: Path, data: Path, budget: float | None, seed: int, picture: Path) -> None:
    """Critical batches by branches, and noise scales, by checkpoint."""
    columns = min(5, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(2.6 * columns + 0.8, 2.4 * rows + 0.8), layout="constrained")
    panels = [*figure.subplots(rows, columns, sharey=True, squeeze=False).flat]
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, names, strict=False):
        grid = Grid(SETTINGS[name], out / f"{slug(name)}.jsonl", data)
        recorded = plan(name, next(iter(LINKS)), out, data, budget or _budget(grid), seed)
        trained = recorded["samples"]["training"]
        for row in recorded["critical_batches"]:
            at, critical = row["samples"] / trained, row["critical_batch"]
            if row["critical_above"]:
                axes.plot(at, row["critical_above"], "^", color="#0072b2")
            elif critical:
                low, high = row["critical_interval"]
                high = high or critical  # above all that were tried
                axes.errorbar(at, critical, [[critical - low], [max(0.0, high - critical)]], fmt="o", color="#0072b2", capsize=3)
        noise = [(int(samples) / trained, value) for samples, value in recorded["noise_scale"].items() if value]
        axes.plot(*zip(*noise, strict=True), "x", color="#d55e00")
        axes.set(yscale="log", xlabel="part of the training", xlim=(0, 1))
        axes.set_title(name, fontsize=8)
    marks = [("o", "#0072b2", "critical batch"), ("^", "#0072b2", "critical batch: above"), ("x", "#d55e00", "noise scale")]
    handles = [Line2D([], [], marker=mark, color=color, linestyle="", label=label) for mark, color, label in marks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.supylabel("samples")
    figure.savefig(picture, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    parser.add_argument("--budget", type=float, help="of the plans, in trainings; without it a fifth of the grid's")
    parser.add_argument("--seed", type=int, default=SEED, help="of the plans")
    parser.add_argument("--picture", type=Path, help="draw the critical batches into this file")
    parser.add_argument("--grids", action="store_true", help="make both grids and no more")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True, parents=True)
    data = given.data.absolute()
    if given.grids:
        for name, seeds in itertools.product(given.only, (SEEDS, ANOTHER)):
            Grid(SETTINGS[name], given.out / f"{slug(name)}.jsonl", data, seeds=seeds)
        return
    heads = ("the plan's", "time against it", "", "device-hours", "by its seeds", "seeds", "cost", "another grid's", "time", "")
    print(f"| training; link | best of the grid | {' | '.join(heads)} |\n{'|---' * (2 + len(heads))}|")
    plans, others = [], []
    for name in given.only:
        for row, by_plan, by_another in compared(name, given.out, data, given.budget, given.seed):
            print(row, flush=True)
            plans.append(by_plan)
            others.append(by_another)
    print("", summary("Plans", plans), summary("Another grid of three seeds", others), sep="\n\n")
    if given.picture:
        draw(given.only, given.out, data, given.budget, given.seed, given.picture)


if __name__ == "__main__":
    main()
