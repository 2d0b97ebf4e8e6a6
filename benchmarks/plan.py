"""How well a plan's parts do where the truth is known:  python benchmarks/plan.py [--seeds 3] [--kills 10]

Links: the step of four and of eight devices is predicted from timings of one and two, with 2% of noise, under made-up links; with
them alone, and with latency and bandwidth measured apart, with 5% of noise (plan.all_reduce).
Choices: a plan is made from branches of a noisy quadratic whose critical batch is known (tests/extras/plan/planted.py) and from
such timings, and its choice is compared with that of the full grid of devices and batches at their best rates, by the true time.

Kills: a plan of a stand-in program is killed at so many moments and started again, and compared with one that was not.

Nothing is trained: it says whether the statistics find what is there, not how well a real training obeys them.
"""

import argparse
import functools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "extras" / "plan"))
from planted_answers import Quadratic  # pyright: ignore[reportMissingImports]

from lockstep.extras.plan.answer import Plan, make_plan
from lockstep.extras.plan.branches import Branches, explore
from lockstep.extras.plan.critical import worth
from lockstep.extras.report.choice import WORTH
from lockstep.extras.report.step_model import Fit, StepModel, Timing, Workload, fit

TESTS = Path(__file__).resolve().parents[1] / "tests" / "extras" / "plan"
NOISE = 0.02  # relative, of a timing
BATCH, LARGEST, EVERY, POINTS = 32, 32, 1024, 8
COUNTS = (1, 2, 4, 8)
LINKS = {
    "one machine": StepModel(fixed=1e-3, per_sample=2e-4, transfer=2e-4, latency=1e-5),
    "fast network": StepModel(fixed=1e-3, per_sample=2e-4, transfer=1e-3, latency=5e-5, overlap=1e-3),
    "slow network": StepModel(fixed=1e-3, per_sample=2e-4, transfer=1e-2, latency=1e-4),
    "far away": StepModel(fixed=1e-3, per_sample=2e-4, transfer=2e-3, latency=1e-3),
    "large net": StepModel(fixed=5e-3, per_sample=2e-3, transfer=5e-2, latency=5e-5, overlap=2e-2),
}
NOISE_SCALES = (64, 512)


def timings(step: StepModel, seed: int) -> list[Timing]:
    """Of one and two devices, at the two global batches that a plan times, each twice."""
    generator = numpy.random.default_rng(seed)
    points = [(n, multiple * BATCH / n) for n in (1, 2) for multiple in (1, 4) for _ in range(2)]
    return [Timing(n, batch, step.seconds(n, batch) * math.exp(NOISE * generator.normal())) for n, batch in points]


def fitted(step: StepModel, seed: int, apart: bool) -> Fit:
    generator = numpy.random.default_rng((seed, 1))
    link = {name: getattr(step, name) * math.exp(0.05 * generator.normal()) for name in ("latency", "transfer")}
    known = fit(timings(step, seed), link if apart else {})
    assert known is not None
    return known


def show_links(seeds: int, apart: bool) -> None:
    print("| link | " + " | ".join(f"{n} devices, batch {multiple * BATCH}" for n in (4, 8) for multiple in (1, 16)) + " |")
    print("|---|---|---|---|---|")
    errors: list[float] = []
    for name, step in LINKS.items():
        row = []
        for n, multiple in ((n, multiple) for n in (4, 8) for multiple in (1, 16)):
            batch = multiple * BATCH / n
            own = [fitted(step, seed, apart).model.seconds(n, batch) / step.seconds(n, batch) - 1 for seed in range(seeds)]
            row.append(", ".join(f"{error:+.1%}" for error in own))
            errors += own
        print(f"| {name} | {' | '.join(row)} |")
    size, largest = statistics.median(map(abs, errors)), max(map(abs, errors))
    print(f"\nMedian error {statistics.median(errors):+.1%}, of their size {size:.1%}, largest {largest:.1%}.\n")


def true_speed(step: StepModel, noise: float, devices: int, multiple: int) -> float:
    """Samples of the smallest ones' worth per second, at the best rate."""
    x = multiple * BATCH / noise
    return Workload(global_batch=multiple * BATCH).throughput(step, devices) * math.log(1 + x) / x


def best_choice(step: StepModel, noise: float) -> tuple[int, int]:
    """The full grid's, by the rule that the plan has: the most devices each step up to which is worth its devices."""
    multiples = [2**power for power in range(int(math.log2(LARGEST)) + 1)]
    fastest = {n: max(multiples, key=lambda multiple: true_speed(step, noise, n, multiple)) for n in COUNTS}
    best = COUNTS[0]
    for n in COUNTS[1:]:
        gain = true_speed(step, noise, n, fastest[n]) / true_speed(step, noise, best, fastest[best])
        if math.log(gain) / math.log(n / best) < WORTH:
            break
        best = n
    return best, fastest[best]


@functools.cache
def explored(noise: float, seed: int) -> Branches:
    quadratic, known = Quadratic(noise=noise, smallest=BATCH, every=EVERY, seed=seed), Branches(EVERY)
    explore(known, quadratic.measure, worth, 1.3 * quadratic.best_rate, LARGEST, POINTS, lambda: 2 * POINTS)
    return known


def planned(step: StepModel, noise: float, seed: int, apart: bool) -> Plan:
    return make_plan(explored(noise, seed), fitted(step, seed, apart), COUNTS, BATCH, seed)


def choices(seeds: int, apart: bool) -> Iterator[tuple[str, bool]]:
    """A row of the table, and whether the choice is the best one or within 5% of its time."""
    for name, step in LINKS.items():
        for noise in NOISE_SCALES:
            best = best_choice(step, noise)
            for seed in range(seeds):
                chosen = planned(step, noise, seed, apart).chosen
                own = "nothing can be said" if chosen is None else f"{chosen.devices} x {chosen.multiple * BATCH}"
                slower = (
                    math.inf
                    if chosen is None
                    else (true_speed(step, noise, *best) / true_speed(step, noise, chosen.devices, chosen.multiple) - 1)
                )
                is_good = abs(slower) <= 0.05  # a faster one has more devices than are worth it
                verdict = "as good" if is_good else "miss"
                yield (
                    f"| {name}, noise scale {noise} | {best[0]} x {best[1] * BATCH} | {own} | {slower:+.1%} | {verdict} |",
                    is_good,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0, help="only this, at so many moments")
    given = parser.parse_args()
    seeds = given.seeds
    if given.kills:
        show_kills(given.kills)
        return
    for apart in (False, True):
        print(f"## {'With the all-reduce measured apart' if apart else 'From timings of one and two devices alone'}\n")
        show_links(seeds, apart)
        show_choices(seeds, apart)


def show_kills(kills: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, killed = Path(folder) / "undisturbed", Path(folder) / "killed"
        jobs = finished(planned_by(undisturbed))
        for kill in range(kills):
            with plan_process(killed) as process:
                while finished(killed) <= jobs * (kill + 0.5) / kills - 1 and process.poll() is None:
                    time.sleep(0.05)
                process.kill()
            print(f"killed with {finished(killed)} of {jobs} jobs finished", flush=True)
        one, other = (json.loads((planned_by(one) / "plan" / "plan.json").read_text()) for one in (undisturbed, killed))
        of_killed = finished(killed)
    is_same = one == other
    print(f"\n{one['answer']}\n\n{'The same' if is_same else 'Another'} plan.json, and {of_killed} jobs for {jobs}.")
    sys.exit(0 if is_same else 1)


def finished(folder: Path) -> int:
    return len([*folder.glob("plan/*/metrics.json")])


def planned_by(folder: Path) -> Path:
    with plan_process(folder) as process:
        assert process.wait() == 0
    return folder


def plan_process(folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    settings = [
        "trainer=cpu",
        "model=mlp",
        "model/optimizer=sgd",
        "model.optimizer.lr=0.2",
        "plan.largest=4",
        "plan.all_reduce=null",
    ]
    settings += ["datamodule.batch_size=16", "trainer.max_epochs=10", "hydra.sweep.dir=plan"]
    command = [sys.executable, str(TESTS / "planted_program.py"), "-m", "sweep=plan", *settings]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def show_choices(seeds: int, apart: bool) -> None:
    print(
        "| setting | best of the grid (devices x batch) | the plan's | time to the target against it | |\n|---|---|---|---|---|"
    )
    good = []
    for row, is_good in choices(seeds, apart):
        print(row, flush=True)
        good.append(is_good)
    print(f"\n{sum(good)} of {len(good)} choices are the grid's, or within 5% of its time to the target.\n")


if __name__ == "__main__":
    main()
