"""Print how large each part of the repository is, beside its budget:  python benchmarks/house.py

Lines are counted as `wc -l` does, of Python unless the row says otherwise. tests/unit/test_house.py keeps them from growing.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "lockstep"
BUDGETS = {
    "train.py": 70,
    "core": 5_200,
    "options": 7_300,
    "all of src": 12_500,
    "imported by a default run": 5_000,
    "files imported by a default run": 50,
    "largest file of src": 300,
    "largest folder of options": 900,
    "files of conf": 95,
    "scripts": 900,
    "tests": 16_000,
    "benchmarks": 2_500,
    "docs, without reference.md": 2_000,
    "README.md": 110,
}
# What a run does not need: folders, and files beside their kind. All else is the core.
OPTIONS = (
    *("exact", "fast_loop", "history", "language", "parity", "ray_cluster", "report", "search", "slurm"),
    *("strategies/compression.py", "strategies/pipeline", "strategies/sharding"),
    *("mirror.py", "new_project.py", "tracking.py", "tuning.py", "launchers/torchrun.py"),
    *(f"callbacks/{name}.py" for name in ("averaging", "code", "early_stopping", "equivalence", "freeze", "monitors")),
    *(f"callbacks/{name}.py" for name in ("noise_scale", "nonfinite", "ranks")),
    *(f"datamodules/{name}.py" for name in ("curriculum", "file_cache", "hf_dataset", "image_cache")),
    *(f"datamodules/{name}.py" for name in ("image_folder", "random_regression", "synthetic_images", "torchvision_images")),
    *("nets/lora.py", "nets/resnet.py", "nets/vit.py", "trainer/profilers.py"),
)
_RUN = """
import runpy, sys
sys.argv = ["train.py", "debug=fast", "trainer=cpu", "test=false", "hydra.run.dir=run"]
try:
    runpy.run_path(PROGRAM, run_name="__main__")
finally:
    for module in list(sys.modules.values()):
        print("MODULE", getattr(module, "__file__", None))
"""


def sizes(folder: Path) -> dict[str, int]:
    """Return the size of each part; a run of one step leaves its directory in `folder`."""
    source = [*(ROOT / "src").rglob("*.py")]
    core = [file for file in PACKAGE.rglob("*.py") if not is_option(file)]
    imported = imported_by_default_run(folder)
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "reference.md"]
    counts = [
        lines([ROOT / "train.py"]),
        lines(core),
        lines(source) - lines(core),
        lines(source),
        lines(imported),
        len(imported),
        max(lines([file]) for file in source),
        max(options().values(), default=0),
        len([*(ROOT / "conf").rglob("*.yaml")]),
        *(lines((ROOT / name).rglob("*.py")) for name in ("scripts", "tests", "benchmarks")),
        lines(pages),
        lines([ROOT / "README.md"]),
    ]
    return dict(zip(BUDGETS, counts, strict=True))


def lines(files: Iterable[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


def is_option(file: Path) -> bool:
    return file.is_relative_to(PACKAGE) and any(file.is_relative_to(PACKAGE / option) for option in OPTIONS)


def options() -> dict[str, int]:
    """Lines of each option."""
    sizes = {name: lines(place.rglob("*.py") if (place := PACKAGE / name).is_dir() else [place]) for name in OPTIONS}
    return {name: size for name, size in sizes.items() if size}


def imported_by_default_run(folder: Path) -> set[Path]:
    """Return train.py and our modules that a run of one step imports."""
    train = ROOT / "train.py"
    command = [sys.executable, "-c", _RUN.replace("PROGRAM", repr(str(train)))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    files = (Path(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("MODULE "))
    return {train, *(file for file in files if file.is_relative_to(ROOT / "src"))}


def main() -> None:
    with TemporaryDirectory() as folder:
        for name, size in sizes(Path(folder)).items():
            print(f"{name:<32} {size:>7,}   budget {BUDGETS[name]:>7,}{'   OVER' if size > BUDGETS[name] else ''}")
    print()
    for name, size in sorted(options().items(), key=lambda item: -item[1]):
        print(f"{size:>7,}  {name}")


if __name__ == "__main__":
    main()
