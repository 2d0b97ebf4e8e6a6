"""Says at a sweep's end whether its jobs have run the same code: one that is resumed may have been changed meanwhile."""

from collections import defaultdict
from pathlib import Path

from lockstep.console import join_first
from lockstep.extras.history.code import COMMIT, decode, fingerprint
from lockstep.extras.history.directories import run_directories


def compare_code(sweep: Path) -> None:
    """Prints nothing where all jobs have kept the same code, else which job has run which; a job that was continued with other
    code has run both."""
    jobs = jobs_by_code(sweep)
    if len(jobs) > 1:
        print("\nThe jobs have not run the same code; code.patch of each has what it ran:")
        for code, names in sorted(jobs.items()):
            print(f"  {code}: {join_first(sorted(names))}")


def jobs_by_code(sweep: Path) -> dict[str, list[str]]:
    """Returns the names of the jobs by commit and changes, as `COMMIT` or `COMMIT+FINGERPRINT`."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for run in run_directories(sweep):
        for path in sorted(filter(Path.is_file, run.glob("code*.patch"))):
            code = decode(path.read_bytes())
            commit, _, changes = code.removeprefix(COMMIT).partition("\n")
            jobs[f"{commit[:12]}+{fingerprint(code)}" if changes else commit[:12]].append(run.name)
    return dict(jobs)
