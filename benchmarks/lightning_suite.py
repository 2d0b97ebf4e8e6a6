"""Lightning's own tests, once with its loop over the batches of an epoch and once with ours: which of them end differently.

    python benchmarks/lightning_suite.py REPO --python PYTHON [--rooms loops trainer] [--tag 2.6.5] [--work FOLDER]

REPO is a clone of github.com/Lightning-AI/pytorch-lightning, of which only the tests are taken, by git; they stay in FOLDER.
PYTHON is that of a virtual environment with this package and with what the tests need: pytest, pytest-timeout,
pytest-rerunfailures, cloudpickle, psutil, pandas, requests, scikit-learn, fastapi, uvicorn, rich, jsonargparse[signatures].
A room is a folder of the tests. A test that has run is not run again, so that the whole can be run in parts: a new FOLDER
begins anew.

Writes benchmarks/lightning_suite.md from all rooms that have run.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
TESTS = "tests/tests_pytorch"
_READ_BY_TESTS = ("pyproject.toml", "tests/legacy/back-compatible-versions.txt")
LOOPS = {"stock": "0", "ours": "1"}
_ORDER = ("failed", "skipped", "passed")  # the worst of a test's set-up, call and tear-down is its outcome
_LEFT_OUT = "models/test_onnx.py"  # imports onnxruntime
_VERSIONS = """
import platform, lightning, pytest, torch
names = [f"{module.__name__} {module.__version__}" for module in (torch, lightning, pytest)]
print(f"Python {platform.python_version()}", *names, sep=", ")
"""

Outcomes = dict[str, str]


def main() -> None:
    arguments = _arguments()
    work, python = Path(arguments.work).absolute(), str(Path(arguments.python).absolute())
    (work / "outcomes").mkdir(parents=True, exist_ok=True)
    if not (work / TESTS).is_dir():
        files = git(arguments.repo, "archive", arguments.tag, TESTS, *_READ_BY_TESTS)
        subprocess.run(["tar", "-x", "-C", str(work)], input=files, check=True)
        (work / TESTS / _LEFT_OUT).unlink()
    for room in arguments.rooms or _rooms(work):
        for side in LOOPS:
            _run(python, work, room, side, arguments.seconds)
    commit = git(arguments.repo, "rev-parse", f"{arguments.tag}^{{commit}}").decode().strip()
    versions = subprocess.check_output([python, "-c", _VERSIONS], text=True).strip()
    ours = git(str(HERE), "rev-parse", "--short", "HEAD").decode().strip()
    (HERE / "lightning_suite.md").write_text(_report(work, f"{arguments.tag} ({commit[:12]})", ours, versions))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rooms", nargs="*")
    parser.add_argument("--tag", default="2.6.5")
    parser.add_argument("--work", default="/tmp/lightning_suite")
    parser.add_argument("--seconds", type=int, default=1200, help="for a room with one of the loops")
    return parser.parse_args()


def git(repo: str, *command: str) -> bytes:
    return subprocess.check_output(["git", "-C", repo, *command])


def _rooms(work: Path) -> list[str]:
    paths = sorted((work / TESTS).iterdir())
    return [path.name for path in paths if list(path.rglob("test_*.py")) or path.match("test_*.py")]


def _run(python: str, work: Path, room: str, side: str, seconds: int) -> None:
    path = work / "outcomes" / f"{room}.{side}"
    here = {"LOCKSTEP_OUTCOMES": str(path), "LOCKSTEP_LOOP": LOOPS[side], "GLOO_SOCKET_IFNAME": "lo"}
    here["PYTHONPATH"] = os.pathsep.join([".", str(HERE)])
    options = ["-q", "-p", "lightning_suite_plugin", "-p", "no:cacheprovider", "--timeout=300", "--color=no", "--tb=short"]
    command = ["timeout", str(seconds), python, "-m", "pytest", *options, f"tests_pytorch/{room}"]
    with (work / "outcomes" / f"{room}.{side}.log").open("a") as log:
        subprocess.run(command, cwd=work / "tests", env=os.environ | here, stdout=log, stderr=log, check=False)


def _read(path: Path) -> Outcomes:
    outcomes: Outcomes = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        outcome, _, node = line.partition("\t")
        if outcome in _ORDER:
            outcomes[node] = min(outcome, outcomes.get(node, outcome), key=_ORDER.index)
    return outcomes


def _different(stock: Outcomes, ours: Outcomes) -> list[str]:
    return sorted(node for node in stock.keys() | ours.keys() if stock.get(node) != ours.get(node))


def _report(work: Path, tag: str, ours: str, versions: str) -> str:
    lines = [
        "# Lightning's own tests with our epoch loop",
        "",
        f"The tests of Lightning {tag}, `{TESTS}`, with the loop of Lightning and with `lockstep.fast_loop` in every",
        f"Trainer, as of {ours}; on CPUs. {versions}. Made by `benchmarks/lightning_suite.py`, which says how.",
        "Tests that fail with either loop fail for other reasons: another version of a library than theirs, no GPU, no network.",
        "Steps are of processes that came to their end, not of those that were stopped at a time limit.",
        "",
        "| tests of | stock: passed, failed, skipped | ours | different | run with one only | steps in the short way |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    total, differing = {side: Counter[str]() for side in LOOPS}, []
    for room in _rooms(work):
        if not (work / "outcomes" / f"{room}.ours").is_file():
            continue
        result = {side: _read(work / "outcomes" / f"{room}.{side}") for side in LOOPS}
        both = result["stock"].keys() & result["ours"].keys()
        left_out = len(result["stock"].keys() | result["ours"].keys()) - len(both)
        result = {side: {node: result[side][node] for node in both} for side in LOOPS}
        different = _different(result["stock"], result["ours"])
        differing += [
            f"- `{node}`: {result['stock'].get(node)} with Lightning's loop, {result['ours'].get(node)} with ours"
            for node in different
        ]
        for side in LOOPS:
            total[side] += Counter(result[side].values())
        cells = [_counts(Counter(result[side].values())) for side in LOOPS]
        lines.append(f"| {room} | {' | '.join(cells)} | {len(different)} | {left_out} | {_steps(work, room)} |")
    lines.append(f"| all | {' | '.join(_counts(total[side]) for side in LOOPS)} | {len(differing)} | | |")
    return "\n".join([*lines, "", *(differing or ["No test ends differently."]), ""])


def _counts(counts: Counter[str]) -> str:
    return ", ".join(str(counts[outcome]) for outcome in reversed(_ORDER) if outcome != "skipped") + f", {counts['skipped']}"


def _steps(work: Path, room: str) -> str:
    """Return how many steps of a folder's tests our loop made in its short way, of all in the tests' own process."""
    lines = (work / "outcomes" / f"{room}.ours").read_text().splitlines()
    counts = [line.partition("\t")[2].split() for line in lines if line.startswith("steps\t")]
    short, all_steps = sum(int(short) for short, _ in counts), sum(int(one) for count in counts for one in count)
    return f"{short} of {all_steps}"


if __name__ == "__main__":
    main()
