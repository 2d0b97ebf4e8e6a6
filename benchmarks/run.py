"""Competitors side by side: each in fresh processes of its own, several times, on one thread a process; one after the other, or,
where what is timed is only a part of each program, these parts in turns of a fifth of a second (measuring.py).

    python benchmarks/run.py [SUITE] [--repeats 5] [overrides of train.py]

SUITE is one of those in benchmarks/suites.py. Prints a table, and writes it to benchmarks/SUITE_HARDWARE.md with how it came
about; the raw samples beside it, as JSON. Medians, with the distance of the quartiles behind them. "of the floor" is the
floor's time for a sample over the competitor's: 1 is as fast as a bare loop. Processor time is of all threads of rank zero, while
it trains. Where other programs run, that is the figure to look at.
"""

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from hardware import processor
from measuring import Sample, measured, measured_in_turns
from suites import SUITES, Competitor, Suite

from lockstep.runs.record import environment

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=sorted(SUITES), nargs="?", default="mlp", help="; ".join(map(_about, SUITES.items())))
    parser.add_argument("--repeats", type=int, default=5, help="of each competitor, in turn")
    arguments, overrides = parser.parse_known_args()
    suite = SUITES[arguments.suite]
    competitors = suite.competitors(overrides)
    hardware = processor()
    path = ROOT / "benchmarks" / f"{arguments.suite}_{slug(hardware)}.md"
    samples: dict[str, list[Sample]] = {competitor.name: [] for competitor in competitors}
    text = ""
    for _ in range(arguments.repeats):
        for competitor, sample in measured_round(competitors, suite.in_turns):
            samples[competitor.name].append(sample)
            print(f"{competitor.name}: {sample}", file=sys.stderr, flush=True)
        text = f"{heading(hardware)}\n\n{suite.about}\n\n{table(suite, competitors, samples)}\n"
        path.write_text(text)  # after each round: one that is ended early leaves a table of those it had
        raw = {name: [sample._asdict() for sample in result] for name, result in samples.items()}
        path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    print(text)


def measured_round(competitors: Sequence[Competitor], in_turns: bool) -> Iterator[tuple[Competitor, Sample]]:
    """Yields each once with its sample; those of as many processes are measured together, where they run in turns."""
    if not in_turns:
        yield from ((competitor, measured(competitor)) for competitor in competitors)
        return
    for count in sorted({competitor.processes for competitor in competitors}):
        together = [competitor for competitor in competitors if competitor.processes == count]
        yield from zip(together, measured_in_turns(together), strict=True)


def _about(item: tuple[str, Suite]) -> str:
    return f"{item[0]}: {item[1].about.splitlines()[0]}"


def slug(text: str) -> str:
    return re.sub(r"\W+", "_", text.lower()).strip("_")


def heading(hardware: str) -> str:
    """Says what a table is of, and how busy the machine is. The commit is what it was at the first call: tables are written
    meanwhile."""
    about = _environment()
    commit = f"commit {(about['git_commit'] or 'unknown')[:12]}{' with changes' if about['git_dirty'] else ''}"
    versions = ", ".join(f"{name} {about['versions'][name]}" for name in ("torch", "lightning"))
    command = " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    return f"`{command}`; {commit}, {versions}, Python {about['python']}, {hardware}, {load}."


_environment = cache(environment)


def table(suite: Suite, competitors: Sequence[Competitor], samples: dict[str, list[Sample]]) -> str:
    columns = suite.columns
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for competitor in competitors:
        floor = next((c for c in competitors if c.is_floor and c.processes == competitor.processes), None)
        cells = [_cell(COLUMNS[column], samples[competitor.name], samples[floor.name] if floor else []) for column in columns]
        lines.append(f"| {competitor.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(column: Callable[[Sample, Sample | None], float | None], samples: list[Sample], floors: list[Sample]) -> str:
    values = [column(sample, floor) for sample, floor in zip(samples, floors or [None] * len(samples), strict=True)]
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "-"
    middle = statistics.median(numbers)
    digits = 0 if middle >= 100 else 2
    if len(numbers) < 3:
        return f"{middle:,.{digits}f}"
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return f"{middle:,.{digits}f} ({high - low:,.{digits}f})"


COLUMNS: dict[str, Callable[[Sample, Sample | None], float | None]] = {
    "samples/s": lambda own, _: own.samples / own.train_time if own.train_time else None,
    "µs a step": lambda own, _: own.train_time / own.steps * 1e6 if own.steps else None,
    "µs of processor": lambda own, _: own.train_cpu / own.steps * 1e6 if own.steps else None,
    "of the floor": lambda own, floor: floor and _ratio(own, floor, "train_time"),
    "of the floor, processor": lambda own, floor: floor and _ratio(own, floor, "train_cpu"),
    "s in all": lambda own, _: own.seconds,
    "s of processor in all": lambda own, _: own.cpu,
    "peak MiB": lambda own, _: own.peak_mib,
}


def _ratio(own: Sample, floor: Sample, seconds: str) -> float | None:
    """Return the ratio of the times of a sample: some competitors take more samples than others."""
    each, floor_s = (getattr(sample, seconds) / sample.samples if sample.samples else 0.0 for sample in (own, floor))
    return floor_s / each if each and floor_s else None


if __name__ == "__main__":
    main()
