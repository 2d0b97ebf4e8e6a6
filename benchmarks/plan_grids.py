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
measured by six other seeds, with which nothing was chosen: by the seeds that the grid's choice was the best of many with, it
looks better than it is. A plan's choice is as good as the grid's if its time is within 5%. The grid's choice is the most devices
each step up to which is worth its devices. A choice that is faster by more than 5% has more devices than are worth it: it is
counted apart, with its device-hours. The time by the grid's own three seeds stands beside it. The plan's rates are among those
that the grid chooses from. The trainings are of two kinds: those whose like (without the average) the method was made with, and
the last four, of which none was seen. benchmarks/plan.md has both counts.

What is there in OUT already is not computed again: losses by training, batch, rate and seed, records of jobs, and plans.
"""

import argparse
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support" / "models"))
from plan import COUNTS, LINKS, fitted  # pyright: ignore[reportAttributeAccessIssue]  # benchmarks/plan.py
from plan_trainings import AVERAGED, SETTINGS, Grid  # pyright: ignore[reportMissingImports]

from lockstep.atomic_files import write_json
from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.extras.plan.answer import AS_GOOD, sentence
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.record import content
from lockstep.extras.plan.search import LARGEST_BUDGET, Search, Settings
from lockstep.extras.plan.training import Training
from lockstep.runs.identity import Identity

ROOT = Path(__file__).resolve().parents[1]
SEED = 3  # of plans: none of the grids' own


def slug(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def plan(name: str, link: str, out: Path, data: Path, budget: float) -> dict[str, Any]:
    """What a plan of the setting says for the link, made where it is not there: with its jobs run in this process, in turn."""
    setting, file = SETTINGS[name], out / "plans" / f"{slug(name)}_{slug(link)}_{budget:g}.json"
    if not file.is_file():
        constants = (
            *setting.composed(data),
            *AVERAGED,
            f"datamodule.batch_size={setting.batch}",
            "guards.watchdog=null",
            f"seed={SEED}",
        )
        constants += (f"model.optimizer.lr={setting.rate}", f"trainer.max_epochs={setting.epochs}", "sweep=plan", "~logger")
        constants += ("trainer.enable_progress_bar=false", "guards.preemption=null")
        settings = Settings(budget=budget, largest=setting.largest, micro_batch=setting.micro_batch)
        jobs = InProcess(out / "jobs" / slug(name), constants)
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


def compared(name: str, out: Path, data: Path, budget: float | None) -> Iterator[tuple[str, str]]:
    """A row of the table by link, and the verdict. The rates of the plans are among the grid's here, for they may be better."""
    setting = SETTINGS[name]
    grid = Grid(setting, out / f"{slug(name)}.jsonl", data)
    plans = {link: plan(name, link, out, data, budget or _budget(grid)) for link in LINKS}
    for recorded in plans.values():
        for batch, rate in (pair for row in recorded["critical_batches"] for pair in row["best_rate"].items()):
            grid.add(int(batch) // setting.batch, rate)
    for link, step in LINKS.items():
        recorded, best = plans[link], grid.choice(step)
        chosen, cost = recorded["chosen"], recorded["samples"]["measured"] / recorded["samples"]["training"] / grid.trainings
        says, slower, hours, again = "nothing can be said", math.inf, math.inf, math.inf
        if chosen is not None:
            devices, batch = chosen["devices"], chosen["global_batch"]
            says = f"{devices} x {batch}, lr {chosen['lr']:.2g}"
            slower = grid.seconds(step, devices, batch // setting.batch, chosen["lr"]) / grid.seconds(step, *best) - 1
            own, others = (batch // setting.batch, chosen["lr"]), (best[1], grid.best_rate(best[1]))
            parts = grid.on_other_seeds((own, others))
            ratio = step.seconds(devices, batch / devices) / batch / step.seconds(best[0], best[1] * setting.batch / best[0])
            again = parts[own] / parts[others] * ratio * best[1] * setting.batch - 1
            hours = (1 + again) * devices / best[0] - 1
        verdict = "miss" if again > AS_GOOD else "faster" if again < -AS_GOOD else ""
        the_best = f"{best[0]} x {best[1] * setting.batch}, lr {grid.best_rate(best[1]):.2g}"
        repeats = 1 + max(one["repeat"] for one in recorded["branches"])
        cells = (
            f"{name}; {link}",
            the_best,
            says,
            *(f"{value:+.1%}" for value in (again, hours, slower)),
            str(repeats),
            f"{cost:.1%}",
        )
        yield f"| {' | '.join(cells)} | {verdict} |", verdict


def _budget(grid: Grid) -> float:
    """Of a plan, in trainings: a fifth of the grid's, and no more than sweep=plan accepts."""
    return min(LARGEST_BUDGET, 0.2 * grid.trainings)


def draw(names: Sequence[str], out: Path, data: Path, budget: float | None) -> None:
    """Critical batches by branches, and noise scales, by checkpoint."""
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(2.6 * columns + 0.8, 2.4 * rows + 0.8), layout="constrained")
    for axes, name in zip(figure.subplots(rows, columns, sharey=True, squeeze=False).flat, names, strict=False):
        grid = Grid(SETTINGS[name], out / f"{slug(name)}.jsonl", data)
        recorded = plan(name, next(iter(LINKS)), out, data, budget or _budget(grid))
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
    figure.savefig(ROOT / "docs" / "critical_batches.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    parser.add_argument("--budget", type=float, help="of the plans, in trainings; without it a fifth of the grid's")
    parser.add_argument("--grids", action="store_true", help="make the grids and no more")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True, parents=True)
    if given.grids:
        for name in given.only:
            Grid(SETTINGS[name], given.out / f"{slug(name)}.jsonl", given.data.absolute())
        return
    print("| training; link | best of the grid | the plan's | time against it | device-hours | by its seeds | seeds | cost | |")
    print("|---|---|---|---|---|---|---|---|---|")
    verdicts = []
    for name in given.only:
        for row, verdict in compared(name, given.out, given.data.absolute(), given.budget):
            print(row, flush=True)
            verdicts.append(verdict)
    if not __import__("os").environ.get("NODRAW"):
        draw(given.only, given.out, given.data.absolute(), given.budget)
    within, faster = verdicts.count(""), verdicts.count("faster")
    print(
        f"\n{within} of {len(verdicts)} choices are the grid's, or within 5% of its time to the target; {faster} more are faster."
    )


if __name__ == "__main__":
    main()
