"""A plan's choice against the full grid, of real trainings:  python benchmarks/plan_grids.py OUT [--only NAME] [--data data]

Grid: each training of plan_trainings.py at 1, 2, 4, ... times its batch, several rates and three seeds, to its end.
Plan: the branches of sweep=plan, of the same training with another seed; its jobs are trained in this process.
Both are given the time of a step by the same made-up links (benchmarks/plan.py), for 1, 2, 4 and 8 devices: more than two cores
there are not, and a global batch gives the same losses on any number of devices. The target is the loss that the smallest
batch has at its best rate, over the seeds, after four tenths of the training.

What is there in OUT already is not computed again: losses by training, batch, rate and seed, and the plans' directories.
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
from plan_trainings import SETTINGS, Grid  # pyright: ignore[reportMissingImports]

from lockstep.atomic_files import write_json
from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.extras.plan.answer import make_plan, sentence
from lockstep.extras.plan.branches import Branch, Branches
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.record import PLAN, content
from lockstep.extras.plan.search import Search, Settings
from lockstep.extras.plan.training import Training
from lockstep.runs.identity import Identity

ROOT = Path(__file__).resolve().parents[1]
SEED = 3  # of plans: none of the grids' own


def slug(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def plan(name: str, out: Path, data: Path) -> dict[str, Any]:
    """What a plan of the setting has measured, made where it is not there: with its jobs run in this process, in turn."""
    setting, folder = SETTINGS[name], out / "plans" / slug(name)
    if not (folder / PLAN).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        constants = (*setting.composed(data), f"datamodule.batch_size={setting.batch}", "guards.watchdog=null", f"seed={SEED}")
        constants += (f"model.optimizer.lr={setting.rate}", f"trainer.max_epochs={setting.epochs}", "sweep=plan", "~logger")
        constants += ("trainer.enable_progress_bar=false", "guards.preemption=null")
        micro_batch = setting.batch * setting.largest
        settings = Settings(budget=setting.budget, largest=setting.largest, micro_batch=micro_batch)
        jobs = InProcess(folder, constants)
        training = Training(jobs.cfg, jobs.plan, ())
        jobs.total = float(jobs.epoch() * setting.epochs)
        jobs.budget = setting.budget * jobs.total
        search = Search(training, settings, jobs, MadeUp(), COUNTS)  # pyright: ignore[reportArgumentType]
        known, fitted, made = search.run()
        facts = {"batch": setting.batch, "noise_scale": search.noise_scales, "jobs": jobs.launched}
        facts["samples"] = {"training": jobs.total, "measured": jobs.spent, "of_a_point": search.every}
        write_json(folder / PLAN, content(sentence(made, setting.batch, jobs.spent / jobs.total), (), made, known, fitted, facts))
    return json.loads((folder / PLAN).read_text())


class MadeUp:
    """In the place of timings: the first link's."""

    fit = fitted(LINKS["one machine"], 0, True)

    def again(self) -> bool:
        return False


class InProcess(Jobs):
    """Jobs of a plan as train.py trains them, but in this process."""

    def __init__(self, directory: Path, constants: tuple[str, ...]) -> None:
        super().__init__(None, directory, False)  # pyright: ignore[reportArgumentType]
        self.constants = constants
        directory.mkdir(parents=True)
        self.cfg = self._composed(())
        self.plan = Plan.from_config(self.cfg)

    def _composed(self, overrides: Sequence[str]) -> Any:
        from in_process import composed  # pyright: ignore[reportMissingImports]

        return composed(*self.constants, *overrides, run_dir=self.directory / f"{self.launched:03}")

    def epoch(self) -> int:
        datamodule, _, trainer = build(self.cfg, self.plan)
        datamodule.setup("fit")  # pyright: ignore[reportOptionalMemberAccess]
        limit, samples = trainer.limit_train_batches, len(datamodule.splits.train)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        return int(limit * (samples // (self.plan.global_batch_size or 1))) * (self.plan.global_batch_size or 1)

    def launch(self, jobs: Sequence[list[str]]) -> list[dict[str, Any] | None]:
        return [self._trained(job) for job in jobs]

    def _trained(self, overrides: Sequence[str]) -> dict[str, Any]:
        self.launched += 1
        given = dict(item.split("=", 1) for item in overrides)
        cfg = self._composed([item for item in overrides if not item.startswith("fork=")])
        folder = Path(cfg.run_dir)
        folder.mkdir()
        checkpoint = Path(given["fork"].strip("'")) if "fork" in given else None
        origin = None
        if checkpoint is not None:
            changed = ["model.optimizer.lr", "datamodule.global_batch_size"]
            origin = {"run": "another", "step": 0, "checkpoint": f"{checkpoint}@0", "changed": changed}
        Identity(folder.name, [], [], None, origin).write(folder)
        datamodule, model, trainer = build(cfg, Plan.from_config(cfg), checkpoint)
        trainer.fit(model, datamodule, ckpt_path=checkpoint)
        facts = [callback.facts() for callback in trainer.callbacks if hasattr(callback, "facts")]  # pyright: ignore[reportAttributeAccessIssue]
        return {key: value for own in facts for key, value in own.items()} | {"directory": folder}


def branches(recorded: dict[str, Any]) -> Branches:
    batch = recorded["batch"]
    curves = {
        Branch(one["from"], one["batch"] // batch, one["lr"]): [math.inf if x is None else x for x in one["losses"]]
        for one in recorded["branches"]
    }
    return Branches(recorded["samples"]["of_a_point"], curves)


def compared(name: str, out: Path, data: Path) -> Iterator[tuple[str, bool]]:
    """A row of the table by link, and whether the choice is the grid's or within 5% of its time. The rates of the plan are among
    the grid's here, for they may be better."""
    setting = SETTINGS[name]
    grid, recorded = Grid(setting, out / f"{slug(name)}.jsonl", data), plan(name, out, data)
    cost = recorded["samples"]["measured"] / recorded["samples"]["training"] / grid.trainings
    known = branches(recorded)
    for multiple in known.multiples(0):
        grid.add(multiple, known.best_rate(0, multiple))
    for link, step in LINKS.items():
        made = make_plan(known, fitted(step, 0, True), COUNTS, setting.batch)
        best, chosen = grid.choice(step), made.chosen
        says, slower = "nothing can be said", math.inf
        if chosen is not None:
            says = f"{chosen.devices} x {chosen.multiple * setting.batch}, lr {made.rate:.2g}"
            slower = grid.seconds(step, chosen.devices, chosen.multiple, made.rate) / grid.seconds(step, *best) - 1
        is_good = abs(slower) <= 0.05  # a faster one has more devices than are worth it
        row = (
            f"{name}; {link}",
            f"{best[0]} x {best[1] * setting.batch}, lr {grid.best_rate(best[1]):.2g}",
            says,
            f"{slower:+.1%}",
            f"{cost:.1%}",
            "" if is_good else "miss",
        )
        yield f"| {' | '.join(row)} |", is_good


def draw(names: Sequence[str], out: Path) -> None:
    """Critical batches by branches, and noise scales, by checkpoint."""
    figure = Figure(figsize=(2.6 * len(names) + 0.8, 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        recorded = json.loads((out / "plans" / slug(name) / PLAN).read_text())
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
    parser.add_argument("--grids", action="store_true", help="make the grids and no more")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True, parents=True)
    if given.grids:
        for name in given.only:
            Grid(SETTINGS[name], given.out / f"{slug(name)}.jsonl", given.data.absolute())
        return
    print("| training; link | best of the grid | the plan's | time to the target against it | cost against the grid | |")
    print("|---|---|---|---|---|---|")
    good = []
    for name in given.only:
        for row, is_good in compared(name, given.out, given.data.absolute()):
            print(row, flush=True)
            good.append(is_good)
    draw(given.only, given.out)
    print(f"\n{sum(good)} of {len(good)} choices are the grid's, or within 5% of its time to the target.")


if __name__ == "__main__":
    main()
