"""Whole trainings at every batch and at several rates: what plan_grids.py holds for true.

Losses by batch, rate and seed are kept in a file, and what stands there is not computed again.
"""

import copy
import json
import math
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import OmegaConf
from scipy.optimize import isotonic_regression

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support" / "models"))
from plan import COUNTS  # pyright: ignore[reportAttributeAccessIssue]  # benchmarks/plan.py

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.extras.plan.callback import LossAtSamples
from lockstep.extras.report.choice import WORTH
from lockstep.extras.report.step_model import StepModel

SEEDS, POINTS = (0, 1, 2), 24  # validations of a training
ANOTHER = (20, 21, 22)  # of a second grid, whose choices are timed beside the first one's as a plan's are
OTHER_SEEDS = (*range(10, 16), *range(60, 78))  # neither a grid's nor a plan's
TARGET = 0.4  # of a training
DECAY = 0.96  # of the average of the weights, per step of the smallest batch: what is validated
MOST_RATES = 8  # of a batch
Pair = tuple[int, float]  # a batch, in multiples of the smallest, and a rate
Choice = tuple[int, int, float]  # devices before these


@dataclass(frozen=True)
class Setting:
    """rate: at the smallest batch; epochs: of the training; part: of each epoch; is_accumulated: whether larger batches are
    accumulated over the smallest one, not computed at once."""

    overrides: tuple[str, ...]
    batch: int
    rate: float
    epochs: int
    largest: int = 16
    part: float = 1.0
    is_accumulated: bool = False

    @property
    def micro_batch(self) -> int:
        """The most samples at once."""
        return self.batch * (1 if self.is_accumulated else self.largest)

    @property
    def rule(self) -> str:
        return "adam" if "model/optimizer=adamw" in self.overrides else "linear"

    def factor(self, multiple: int) -> float:
        return float(multiple) if self.rule == "linear" else multiple**0.5

    @property
    def multiples(self) -> list[int]:
        return [2**power for power in range(self.largest.bit_length())]

    def composed(self, data: Path) -> tuple[str, ...]:
        folder = (f"datamodule.data_dir={data}",) if "datamodule=mnist" in self.overrides else ()
        return *COMMON, *self.overrides, *folder, f"trainer.limit_train_batches={self.part}"


COMMON = ("trainer=cpu", "model/lr_scheduler=constant")
EMA = Path(__file__).resolve().parents[1] / "conf" / "callbacks" / "ema.yaml"
AVERAGED = ("callbacks=ema", f"callbacks.ema.decay={DECAY}")  # of plans
SGD, ADAMW = ("model/optimizer=sgd", "model.optimizer.momentum=0"), ("model/optimizer=adamw",)
MOMENTUM = ("model/optimizer=sgd", "model.optimizer.momentum=0.9")
LOWEST = ("optimized_metric=val/loss", "optimized_mode=min")
DIGITS, MNIST = ("datamodule=digits", "datamodule.val_fraction=0.25"), ("datamodule=mnist", "datamodule.val_fraction=0.03")
SYNTHETIC = ("datamodule=synthetic_images", "datamodule.shape=[3,32,32]", "datamodule.length=8000", "datamodule.val_length=500")
SOURCES = ("datamodule=text", "trainer.limit_val_batches=12", *LOWEST)
SMALL_GPT = ("model=gpt", "model.net.width=48", "model.net.depth=2", "model.net.heads=4", "datamodule.context=64")
NARROW_GPT = ("model=gpt", "model.net.width=32", "model.net.depth=1", "model.net.heads=2", "datamodule.context=32")
MNIST_CNN = ("model=cnn", "model.net.width=8", "datamodule=mnist", "datamodule.val_fraction=0.015")
SETTINGS = {
    "digits mlp, SGD": Setting(("model=mlp", *DIGITS, *SGD), 8, 0.2, 8),
    "digits cnn, AdamW": Setting(("model=cnn", "model.net.width=8", *DIGITS, *ADAMW), 8, 4e-3, 6, 8),
    "MNIST mlp, SGD": Setting(("model=mlp", *MNIST, *SGD), 16, 0.1, 1, part=0.2),
    "MNIST cnn, AdamW": Setting((*MNIST_CNN, *ADAMW), 16, 4e-3, 1, 8, part=0.25),
    "GPT on Python's sources, AdamW": Setting((*SMALL_GPT, *SOURCES, *ADAMW), 4, 4e-3, 1, 8, part=0.025, is_accumulated=True),
    "synthetic images cnn, SGD": Setting(("model=cnn", "model.net.width=4", *SYNTHETIC, *SGD), 8, 0.1, 1),
    "digits mlp of two layers, momentum": Setting(("model=mlp", "model.net.hidden=[64,64]", *DIGITS, *MOMENTUM), 8, 0.02, 8),
    "MNIST mlp, AdamW": Setting(("model=mlp", *MNIST, *ADAMW), 16, 1e-3, 1, 8, part=0.2),
    "synthetic images mlp, SGD": Setting(("model=mlp", "model.net.hidden=[32]", *SYNTHETIC, *SGD), 8, 0.02, 1),
    "narrow GPT, AdamW": Setting((*NARROW_GPT, *SOURCES, *ADAMW), 4, 4e-3, 1, 8, part=0.0125, is_accumulated=True),
}


def losses(setting: Setting, data: Path, multiple: int, rate: float, seed: int) -> list[tuple[float, float | None]]:
    """Of one training: parts of it, and the loss there; None where it has diverged."""
    from in_process import composed  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        given = [f"datamodule.global_batch_size={multiple * setting.batch}", f"seed={seed}", "test=false", "~callbacks"]
        given += [f"model.optimizer.lr={rate / setting.factor(multiple)}", f"lr_scaling={setting.rule}"]
        given += [
            f"trainer.max_epochs={setting.epochs}",
            f"base_batch_size={setting.batch}",
            "++events.fast_loop=null",
            "~logger",
        ]
        given += ["trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=1000000000"]
        given += ["trainer.enable_progress_bar=false"]
        given += [f"trainer.accumulate_grad_batches={multiple}"] if setting.is_accumulated else []
        given += [f"guards.{name}=null" for name in ("checkpoint", "watchdog", "nonfinite", "preemption")]
        cfg = composed(*setting.composed(data), *given, run_dir=Path(folder))
        datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
        ends = ends_of(setting, datamodule)
        curve = LossAtSamples(ends, "val/loss")
        average = instantiate(OmegaConf.load(EMA).ema, decay=DECAY**multiple)
        trainer.callbacks[:0] = [curve, average]  # pyright: ignore[reportAttributeAccessIssue]
        trainer.fit(model, datamodule)
    return [(int(at) / ends[-1], loss if math.isfinite(loss) else None) for at, loss in curve.losses.items()]


def ends_of(setting: Setting, datamodule: Any) -> list[int]:
    """Samples between the points, whole steps of the largest batch: all are within the training at every batch."""
    datamodule.setup("fit")
    largest = setting.batch * setting.largest
    steps = setting.epochs * int(setting.part * (len(datamodule.splits.train) // largest))
    return sorted({max(1, round(steps * point / POINTS)) * largest for point in range(1, POINTS + 1)})


@dataclass
class Grid:
    """The trainings of a setting, in a file: each batch at the rule's rate and those beside it, and at more until the best one is
    neither the largest nor the smallest."""

    setting: Setting
    file: Path
    data: Path
    done: dict[tuple[int, float, int], list[Any]] = field(default_factory=dict)
    parts: dict[Pair, float] = field(default_factory=dict)  # of a training to the target; infinite: not reached
    own: tuple[Pair, ...] = ()  # that it was made with
    target: float = math.nan
    seeds: tuple[int, ...] = SEEDS

    def __post_init__(self) -> None:
        if self.file.is_file():
            self.done = {tuple(row[:3]): row[3] for row in map(json.loads, self.file.read_text().splitlines())}
        for multiple in self.setting.multiples:
            rates = [self.setting.rate * self.setting.factor(multiple) * factor for factor in (0.5, 1, 2)]
            ranks = {rate: self._rank(multiple, rate) for rate in rates}
            while len(rates) < MOST_RATES and (best := min(rates, key=lambda rate: ranks[rate])) in (rates[0], rates[-1]):
                rates = sorted([*rates, best / 2 if best == rates[0] else best * 2])
                ranks = {rate: self._rank(multiple, rate) for rate in rates}
            if multiple == 1:
                self.target = math.exp(min(self._smooth(multiple, rate)[0](TARGET) for rate in rates))
            self.parts |= {(multiple, rate): self._samples_to_target(multiple, rate) for rate in rates}
        self.own = tuple(self.parts)

    @property
    def trainings(self) -> int:
        return len(self.seeds) * len(self.own)

    def add(self, multiple: int, rate: float) -> None:
        """Trains at a rate of a plan's, which then is one of those that the best one is chosen from."""
        if multiple in self.setting.multiples:
            self.parts[multiple, rate] = self._samples_to_target(multiple, rate)

    def on_seeds(self, seeds: Sequence[int], pairs: Collection[Pair]) -> "Grid":
        """By seeds that no rate and no batch was chosen by; the target is theirs too, of the smallest batch at the rate that is
        best by the grid's own seeds."""
        other = copy.copy(self)
        other.seeds = tuple(seeds)
        other.target = math.exp(other._smooth(1, self.best_rate(1))[0](TARGET))
        other.parts = {pair: other._samples_to_target(*pair) for pair in pairs}
        return other

    def _rank(self, multiple: int, rate: float) -> tuple[float, float]:
        """Smaller is better: where the target is known, by what of a training it takes; before, by the loss there."""
        curve, _, means = self._smooth(multiple, rate)
        if math.isnan(self.target):
            return curve(TARGET), 0.0
        return self._samples_to_target(multiple, rate), float(means[-1])

    def _smooth(self, multiple: int, rate: float) -> tuple[Any, NDArray[numpy.float64], NDArray[numpy.float64]]:
        """The mean of the seeds' logarithms, as the falling curve that is nearest to it: as a function of the part of a training,
        and its points."""
        runs = [self._run(multiple, rate, seed) for seed in self.seeds]
        at = numpy.array([point[0] for point in runs[0]])
        means = numpy.mean([[math.log(math.inf if loss is None else loss) for _, loss in run] for run in runs], axis=0)
        if numpy.isfinite(means).all():
            means = isotonic_regression(means, increasing=False).x
        return lambda part: float(numpy.interp(part, at, means)), at, means

    def _run(self, multiple: int, rate: float, seed: int) -> list[Any]:
        if (multiple, rate, seed) not in self.done:
            self.done[multiple, rate, seed] = losses(self.setting, self.data, multiple, rate, seed)
            with self.file.open("a") as lines:
                lines.write(json.dumps([multiple, rate, seed, self.done[multiple, rate, seed]]) + "\n")
        return self.done[multiple, rate, seed]

    def _samples_to_target(self, multiple: int, rate: float) -> float:
        """Between the middles of the level pieces that such a curve consists of."""
        _, at, means = self._smooth(multiple, rate)
        levels = sorted({*means}, reverse=True)
        middles = [float(at[means == level].mean()) for level in levels]
        logs = math.log(self.target)
        if not math.isfinite(levels[0]) or levels[-1] > logs:
            return math.inf
        return float(numpy.interp(-logs, [-level for level in levels], middles))

    def rates(self, multiple: int) -> list[float]:
        return sorted(rate for other, rate in self.parts if other == multiple)

    def best_rate(self, multiple: int) -> float:
        return min(self.rates(multiple), key=lambda rate: self.parts[multiple, rate])

    def nearest(self, multiple: int, rate: float) -> float:
        """Of the rates that it was made with."""
        return min((own for other, own in self.own if other == multiple), key=lambda own: abs(math.log(own / rate)))

    def words(self, choice: Choice) -> str:
        return f"{choice[0]} x {choice[1] * self.setting.batch}, lr {choice[2]:.2g}"

    def seconds(self, step: StepModel, devices: int, multiple: int, rate: float | None = None) -> float:
        """To the target, in trainings' samples; at the best rate where none is given."""
        batch = multiple * self.setting.batch
        return self.parts[multiple, rate or self.best_rate(multiple)] * step.seconds(devices, batch / devices) / batch

    def choice(self, step: StepModel) -> Choice:
        """The most devices each step up to which is worth its devices, at their best batch: as a plan chooses."""
        multiples: Sequence[int] = self.setting.multiples
        fastest = {n: min(multiples, key=lambda multiple: self.seconds(step, n, multiple)) for n in COUNTS}
        best = COUNTS[0]
        for n in COUNTS[1:]:
            gain = self.seconds(step, best, fastest[best]) / self.seconds(step, n, fastest[n])
            if math.log(gain) / math.log(n / best) < WORTH:
                break
            best = n
        return best, fastest[best], self.best_rate(fastest[best])
