"""List the runs below a folder with their results, and compare two of them.

lockstep runs [LOGS]                                             # all runs, those of sweeps too; LOGS is logs by default
lockstep runs --where model=cnn seed=1 --sort val/acc            # the best first
lockstep runs --best --where model=cnn                           # the directory of the best alone, for other commands
lockstep runs --json                                             # all metrics, for notebooks
lockstep runs diff RUN_DIR RUN_DIR                               # config, code, versions, machine, metrics

KEY is a column, a metric, a config group or a key of the config. Exit codes: 0, or 2 where there is no such run or key.
"""

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.console import show_table
from lockstep.errors import config_error
from lockstep.history.runs import COLUMNS, RunRecord, best_run, differences, find_runs, sort_runs, where
from lockstep.sweeps.table import shorten


def main() -> None:
    if sys.argv[1:2] == ["diff"]:
        show_differences(sys.argv[2:])
        return
    parser = script_parser(__doc__)
    parser.add_argument("logs", type=Path, nargs="?", default=Path("logs"), metavar="LOGS")
    parser.add_argument("--where", nargs="+", default=[], metavar="KEY=VALUE", help="only runs of which each of these is true")
    parser.add_argument("--sort", default="started", metavar="KEY", help="the best, smallest or earliest first (started)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--best", action="store_true", help="print the directory of the run with the best optimized_metric")
    form.add_argument("--json", action="store_true", help="print a list of objects")
    given = parser.parse_args()
    runs = sort_runs(where(find_runs(given.logs), given.where), given.sort)
    if given.best:
        print(best_run(runs).path)
    elif given.json:
        print(json.dumps([run.as_dict() for run in runs], indent=2))
    else:
        show_runs(runs, given.sort)


def show_runs(runs: Sequence[RunRecord], key: str) -> None:
    """Print a line for each run; the key by which they are sorted is a column, too."""
    columns = [*COLUMNS[:2], *([key] if key not in COLUMNS else []), *COLUMNS[2:]]
    rows = [[cell(run, column) for column in columns] for run in runs]
    show_table(rows or [["no runs"]], columns if rows else ())


def cell(run: RunRecord, column: str) -> str:
    value = run.values.get(column)
    if value is None:
        return ""
    if column == "metric":
        return f"{run.optimized_metric} {value:.5g}"
    if column == "duration":
        return str(timedelta(seconds=round(value)))
    text = f"{value:.5g}" if isinstance(value, float) else " ".join(str(value).split())  # an error may have several lines
    return shorten(text) if column == "reason" else text


def show_differences(arguments: list[str]) -> None:
    parser = script_parser("What two runs have not in common.", "diff")
    parser.add_argument("run_dirs", type=Path, nargs=2, metavar="RUN_DIR")
    paths: list[Path] = parser.parse_args(arguments).run_dirs
    if missing := next((path for path in paths if not (path / "status.json").is_file()), None):
        raise config_error("RUN_DIR", missing, "has no status.json; give the directory of a run")
    for section, names in differences(*(RunRecord(path, str(path)) for path in paths)).items():
        rows = [[f"  {name}", *("" if value is None else str(value) for value in values)] for name, values in names.items()]
        show_table([[section if rows else f"{section}: equal", "", ""], *rows])


if __name__ == "__main__":
    start(main)
