"""How large the house is:  python benchmarks/house.py

Prints the lines (as `wc -l` counts them) of the core, of what a default run imports, of all of src/, and of the largest room,
and how many of our files lie between train.py and optimizer.step(): those on the stack when a default run makes its first step.
Beside each stands its budget. tests/unit/test_house.py keeps the first three from growing.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = next((ROOT / "src").glob("*/extras")).parent
BUDGETS = {
    "the core": 9_000,
    "imported by a default run": 6_500,
    "all of src/": 15_500,
    "the largest room": 1_300,
    "files from train.py to optimizer.step()": 10,
}

# Runs a step of train.py, then prints our modules' files, and after an empty line those on the stack of the first step.
_RUN = """
import runpy, sys, traceback
sys.argv = ["train.py", "debug=fast", "trainer=cpu", "test=false", "hydra.run.dir=run", *sys.argv[1:]]
steps = []

def note(*_):
    steps.append([frame.filename for frame in traceback.extract_stack()])

try:
    import lockstep.launchers.stop_at_once
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    register_optimizer_step_pre_hook(note)
    runpy.run_path(PROGRAM, run_name="__main__")
finally:
    for module in list(sys.modules.values()):
        print("MODULE", getattr(module, "__file__", None))
    for file in steps[0]:
        print("STEP", file)
"""


def lines(files: list[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


def rooms() -> dict[str, int]:
    """The lines of each folder of the core, and of each extra."""
    folders = [path for path in [*PACKAGE.iterdir(), *(PACKAGE / "extras").iterdir()] if path.is_dir() and path.name != "extras"]
    sizes = {str(folder.relative_to(PACKAGE)): lines([*folder.rglob("*.py")]) for folder in folders}
    return {name: size for name, size in sizes.items() if size}


def core() -> list[Path]:
    return [file for file in PACKAGE.rglob("*.py") if "extras" not in file.relative_to(PACKAGE).parts]


def default_run(folder: Path) -> tuple[set[Path], set[Path]]:
    """Our files that a run imports, and those on the stack of its first step; the run's directory comes to lie in `folder`."""
    program = _RUN.replace("PROGRAM", repr(str(ROOT / "train.py")))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    said = [line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("MODULE ", "STEP "))]
    own = [(kind, Path(file)) for kind, file in said if file.startswith(str(ROOT / "src")) or file == str(ROOT / "train.py")]
    return {file for kind, file in own if kind == "MODULE"}, {file for kind, file in own if kind == "STEP"}


def sizes(folder: Path) -> dict[str, int]:
    imported, stack = default_run(folder)
    return {
        "the core": lines(core()),
        "imported by a default run": lines([*imported]),
        "all of src/": lines([*(ROOT / "src").rglob("*.py")]),
        "the largest room": max(rooms().values()),
        "files from train.py to optimizer.step()": len(stack),
    }


def main() -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        measured = sizes(Path(folder))
    for name, value in measured.items():
        print(f"{name:<40} {value:>7,}   budget {BUDGETS[name]:>7,}")
    print()
    for name, value in sorted(rooms().items(), key=lambda item: -item[1]):
        print(f"{value:>7,}  {name}")


if __name__ == "__main__":
    main()
