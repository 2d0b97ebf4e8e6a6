"""Report on a sweep over devices and learning rates.

lockstep report SWEEP_DIR
lockstep report SWEEP_DIR --only model=cnn                         # of the jobs that have this override
lockstep report SWEEP_DIR --all-reduce FILE                     # beside the all-reduce that lockstep allreduce measured

Writes SWEEP_DIR/report/: report.html (one file, opens without a network), report.md, and the pictures as PNG. Prints
the answer. The sweep need not have ended: the report says what is missing. sweep=scaling and weak_scaling write their report
when they end.

Exit codes: 0 written, 2 it can't be.
"""

from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.report.page import read_all_reduce, write_report


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("sweep_dir", type=Path, metavar="SWEEP_DIR")
    parser.add_argument("--only", nargs="+", default=[], metavar="KEY=VALUE", help="jobs with these overrides")
    parser.add_argument("--all-reduce", type=Path, metavar="FILE", help="what lockstep allreduce --json wrote")
    given = parser.parse_args()
    all_reduce = read_all_reduce(given.all_reduce) if given.all_reduce else {}
    answer, page = write_report(given.sweep_dir, given.only, all_reduce)
    print(f"{answer}\n\n{page}", flush=True)


if __name__ == "__main__":
    start(main)
