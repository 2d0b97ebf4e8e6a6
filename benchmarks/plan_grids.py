"""A plan's choice against the full grid, of real trainings:  python benchmarks/plan_grids.py OUT [--only NAME] [--data data]

Grid: each of the trainings below at 1, 2, 4, ... times its batch, several rates and three seeds, to its end; one thread each.
Plan: the short training and the branches of sweep=plan, of the same training; its jobs are trained in this process.
Both are given the time of a step by the same made-up links (benchmarks/plan.py), for 1, 2, 4 and 8 devices: more than two cores
there are not, and a global batch gives the same losses on any number of devices. The target is the loss that the smallest
batch has at its best rate, over the seeds, after six tenths of the training.

What is there in OUT already is not computed again: losses by training, batch, rate and seed, and the plans' directories.
"""

import argparse
import json
import math
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support" / "models"))
from plan import COUNTS, LINKS, fitted  # pyright: ignore[reportAttributeAccessIssue]  # benchmarks/plan.py

from lockstep.atomic_files import write_json
from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.extras.plan.answer import make_plan, sentence
from lockstep.extras.plan.branches import Branch, Branches
from lockstep.extras.plan.callback import LossAtSamples
from lockstep.extras.plan.jobs import Jobs
from lockstep.extras.plan.record import PLAN, content
from lockstep.extras.plan.search import Search, Settings
from lockstep.extras.plan.training import Training
from lockstep.extras.report.choice import WORTH
from lockstep.extras.report.step_model import StepModel
from lockstep.runs.identity import Identity

ROOT = Path(__file__).resolve().parents[1]
COMPARED = ("one machine", "far away")
SEEDS, POINTS = (0, 1, 2), 25  # validations of a training
TARGET = 0.6  # of a training
SPREAD = 2.0  # the factor from a rate of the grid to the next


@dataclass(frozen=True)
class Setting:
    """rate: at the smallest batch; epochs: of the training; samples: of an epoch; budget: of the plan, in trainings."""

    overrides: tuple[str, ...]
    batch: int
    rate: float
    epochs: int
    largest: int = 16
    budget: float = 2.0
    part: float = 1.0  # of each epoch

    @property
    def rule(self) -> str:
        return "adam" if "model/optimizer=adamw" in self.overrides else "linear"

    def rates(self, multiple: int) -> list[float]:
        """From half the rate to twice what the rule has."""
        steps = math.log2(multiple) / (1 if self.rule == "linear" else 2)
        return [self.rate * SPREAD**power for power in range(-1, math.ceil(steps) + 2)]

    @property
    def multiples(self) -> list[int]:
        return [2**power for power in range(int(math.log2(self.largest)) + 1)]


COMMON = ("trainer=cpu", "model/lr_scheduler=constant")
SGD = ("model/optimizer=sgd", "model.optimizer.momentum=0")
DIGITS, MNIST = ("datamodule=digits",), ("datamodule=mnist", "datamodule.val_fraction=0.03")
SYNTHETIC = ("datamodule=synthetic_images", "datamodule.shape=[3,8,8]", "datamodule.length=4000")
CNN, ADAMW = ("model=cnn", "model.net.width=4"), ("model/optimizer=adamw",)
GPT = ("model=gpt_nano", "model.net.width=32", "model.net.depth=2", "model.net.heads=2", "datamodule=text")
GPT += ("datamodule.context=32", "datamodule.val_fraction=0.1", "optimized_metric=val/loss", "optimized_mode=min")
SETTINGS = {
    "digits mlp, SGD": Setting(("model=mlp", *DIGITS, *SGD), 8, 0.2, 8),
    "digits cnn, AdamW": Setting(("model=cnn", "model.net.width=8", *DIGITS, *ADAMW), 8, 4e-3, 6, 8),
    "MNIST mlp, SGD": Setting(("model=mlp", *MNIST, *SGD), 16, 0.1, 1, part=0.6),
    "MNIST cnn, SGD": Setting((*CNN, *MNIST, *SGD), 16, 0.2, 1, part=0.25),
    "synthetic images cnn, SGD": Setting((*CNN, *SYNTHETIC, *SGD), 8, 0.05, 1),
    "GPT on Python's sources, AdamW": Setting((*GPT, *ADAMW), 8, 2e-3, 1, 8),
}


def losses(setting: Setting, data: Path, multiple: int, rate: float, seed: int) -> list[float | None]:
    """Of one training: after 1, 2, ... of POINTS equal parts; None where it has diverged."""
    from in_process import composed  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        factor = multiple if setting.rule == "linear" else multiple**0.5
        given = [f"datamodule.global_batch_size={multiple * setting.batch}", f"model.optimizer.lr={rate / factor}"]
        given += [f"lr_scaling={setting.rule}", f"base_batch_size={setting.batch}", f"seed={seed}", "test=false", "~callbacks"]
        given += [f"trainer.max_epochs={setting.epochs}", "++events.fast_loop=null", "guards.checkpoint=null", "~logger"]
        given += ["trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=1000000000", "guards.watchdog=null"]
        given += ["trainer.enable_progress_bar=false", "guards.nonfinite=null", "guards.preemption=null"]
        cfg = composed(*COMMON, *with_data(setting, data), *given, run_dir=Path(folder))
        datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
        curve = LossAtSamples(ends(setting, datamodule), "val/loss")
        trainer.callbacks.insert(0, curve)  # pyright: ignore[reportAttributeAccessIssue]
        trainer.fit(model, datamodule)
    return [loss if math.isfinite(loss) else None for loss in curve.losses.values()]


def ends(setting: Setting, datamodule: Any) -> list[int]:
    """Samples between the points: all within the training at every batch, whose epochs are of whole ones."""
    datamodule.setup("fit")
    largest = setting.batch * setting.largest
    total = setting.epochs * int(setting.part * (len(datamodule.splits.train) // largest)) * largest
    return [total * point // POINTS for point in range(1, POINTS + 1)]


def with_data(setting: Setting, data: Path) -> tuple[str, ...]:
    if "datamodule=mnist" in setting.overrides:
        return *setting.overrides, f"datamodule.data_dir={data}", f"trainer.limit_train_batches={setting.part}"
    if "datamodule=text" in setting.overrides:
        library = sysconfig.get_path("stdlib")
        return *setting.overrides, f"datamodule.paths=[{library}/json,{library}/logging]"
    return setting.overrides


def grid(name: str, out: Path, data: Path) -> dict[tuple[int, float], list[list[float]]]:
    """By multiple and rate: the losses of each seed."""
    setting, file = SETTINGS[name], out / f"{slug(name)}.jsonl"
    done = {tuple(row[:3]): row[3] for row in map(json.loads, file.read_text().splitlines())} if file.is_file() else {}
    for seed, multiple in ((seed, multiple) for seed in SEEDS for multiple in setting.multiples):
        for rate in setting.rates(multiple):
            if (multiple, rate, seed) not in done:
                done[multiple, rate, seed] = losses(setting, data, multiple, rate, seed)
                with file.open("a") as lines:
                    lines.write(json.dumps([multiple, rate, seed, done[multiple, rate, seed]]) + "\n")
    pairs = [(multiple, rate) for multiple in setting.multiples for rate in setting.rates(multiple)]
    return {pair: [[math.inf if x is None else x for x in done[*pair, seed]] for seed in SEEDS] for pair in pairs}


def slug(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def plan(name: str, out: Path, data: Path) -> dict[str, Any]:
    """What a plan of the setting has measured, made where it is not there: with its jobs run in this process, in turn."""
    setting, folder = SETTINGS[name], out / "plans" / slug(name)
    if not (folder / PLAN).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        constants = (*COMMON, *with_data(setting, data), f"datamodule.batch_size={setting.batch}", "guards.watchdog=null")
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
        facts["samples"] = {"training": jobs.total, "measured": jobs.spent, "of_a_branch": search.length}
        write_json(folder / PLAN, content(sentence(made, setting.batch, jobs.spent / jobs.total), (), made, known, fitted, facts))
    return json.loads((folder / PLAN).read_text())


class MadeUp:
    """In the place of timings: the first link's."""

    fit = fitted(LINKS[COMPARED[0]], 0, True)

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


def samples_to(target: float, curves: Sequence[Sequence[float]]) -> float:
    """In parts of a training: where the mean of the losses' logarithms first comes down to the target's."""
    means = numpy.mean(numpy.log(numpy.array(curves, dtype=float)), axis=0)
    below = numpy.flatnonzero(means <= math.log(target))
    if not len(below):
        return math.inf
    last = int(below[0])
    if last == 0:
        return 1 / POINTS
    step = (means[last - 1] - math.log(target)) / (means[last - 1] - means[last])
    return (last + float(step)) / POINTS


class Truth:
    """Of a setting, by its grid: parts of a training to the target, by batch and rate."""

    def __init__(self, setting: Setting, curves: dict[tuple[int, float], list[list[float]]]) -> None:
        at = round(TARGET * POINTS) - 1
        smallest = [own for (multiple, _), own in curves.items() if multiple == 1]
        self.target = math.exp(min(float(numpy.mean(numpy.log(numpy.array(own)[:, at]))) for own in smallest))
        self.setting = setting
        self.parts = {pair: samples_to(self.target, own) for pair, own in curves.items()}

    def best(self, multiple: int) -> float:
        return min(self.parts[multiple, rate] for rate in self.setting.rates(multiple))

    def at(self, multiple: int, rate: float) -> float:
        """At any rate: between two of the grid, in logarithms."""
        rates = self.setting.rates(multiple)
        parts = [self.parts[multiple, one] for one in rates]
        if not rates[0] <= rate <= rates[-1]:
            return parts[0] if rate < rates[0] else parts[-1]
        above = next(number for number in range(1, len(rates)) if rate <= rates[number] * (1 + 1e-9))
        low, high = parts[above - 1], parts[above]
        share = math.log(rate / rates[above - 1]) / math.log(SPREAD)
        if math.isinf(low) or math.isinf(high):
            return low if share < 0.5 else high
        return low ** (1 - share) * high**share

    def seconds(self, step: StepModel, devices: int, multiple: int, rate: float | None = None) -> float:
        """To the target, in trainings' samples; the best rate where none is given."""
        batch = multiple * self.setting.batch
        parts = self.best(multiple) if rate is None else self.at(multiple, rate)
        return parts * step.seconds(devices, batch / devices) / batch

    def choice(self, step: StepModel) -> tuple[int, int]:
        """The most devices each step up to which is worth its devices, at their best batch: as a plan chooses."""
        fastest = {n: min(self.setting.multiples, key=lambda multiple: self.seconds(step, n, multiple)) for n in COUNTS}
        best = COUNTS[0]
        for n in COUNTS[1:]:
            gain = self.seconds(step, best, fastest[best]) / self.seconds(step, n, fastest[n])
            if math.log(gain) / math.log(n / best) < WORTH:
                break
            best = n
        return best, fastest[best]


def branches(recorded: dict[str, Any]) -> Branches:
    batch = recorded["batch"]
    return Branches(
        {
            Branch(one["samples"], one["batch"] // batch, one["lr"]): [math.inf if x is None else x for x in one["losses"]]
            for one in recorded["branches"]
        }
    )


def compared(name: str, out: Path, data: Path) -> Iterator[tuple[str, bool]]:
    """A row of the table by link, and whether the choice is the grid's or within 5% of its time."""
    setting = SETTINGS[name]
    truth, recorded = Truth(setting, grid(name, out, data)), plan(name, out, data)
    trainings = len(SEEDS) * sum(len(setting.rates(multiple)) for multiple in setting.multiples)
    cost = recorded["samples"]["measured"] / recorded["samples"]["training"] / trainings
    for link in COMPARED:
        step = LINKS[link]
        made = make_plan(branches(recorded), fitted(step, 0, True), COUNTS, setting.batch)
        best, chosen = truth.choice(step), made.chosen
        says, slower = "nothing can be said", math.inf
        if chosen is not None:
            says = f"{chosen.devices} x {chosen.multiple * setting.batch}, lr {made.rate:.2g}"
            slower = truth.seconds(step, chosen.devices, chosen.multiple, made.rate) / truth.seconds(step, *best) - 1
        is_good = (chosen is not None and (chosen.devices, chosen.multiple) == best) or abs(slower) <= 0.05
        row = (
            f"{name}; {link}",
            f"{best[0]} x {best[1] * setting.batch}",
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
            grid(name, given.out, given.data.absolute())
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
