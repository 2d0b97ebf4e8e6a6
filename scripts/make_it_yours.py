"""Renames the package and takes out the rooms you don't need. Run it once, on a clean checkout.

    python scripts/make_it_yours.py my_project --without resnet image_folder regression

A room is a config file, a module beside it, and its tests; what else still mentions it is listed for you to look at.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLD = "lockstep"
ROOMS = {
    "cnn": ["conf/model/cnn.yaml", "src/lockstep/nets/cnn.py"],
    "resnet": ["conf/model/resnet18.yaml", "conf/model/resnet50.yaml", "src/lockstep/nets/resnet.py"],
    "regression": [
        "conf/model/linear.yaml",
        "conf/model/regressor.yaml",
        "conf/datamodule/random_regression.yaml",
        "conf/experiment/toy_regression.yaml",
        "conf/experiment/checkpoint_every_10.yaml",
        "src/lockstep/models/regressor.py",
        "src/lockstep/datamodules/random_regression.py",
    ],
    "torchvision_images": [
        "conf/datamodule/mnist.yaml",
        "conf/datamodule/fashion_mnist.yaml",
        "conf/datamodule/cifar10.yaml",
        "conf/experiment/mnist_ddp.yaml",
        "src/lockstep/datamodules/torchvision_images.py",
    ],
    "image_folder": [
        "conf/datamodule/image_folder.yaml",
        "src/lockstep/datamodules/image_folder.py",
        "tests/unit/test_image_folder.py",
    ],
    "synthetic_images": [
        "conf/datamodule/synthetic_images.yaml",
        "src/lockstep/datamodules/synthetic_images.py",
        "tests/gpu/test_gpu.py",
    ],
    "parity": [
        "conf/parity.yaml",
        "benchmarks/accuracy.py",
        "scripts/parity.py",
        "benchmarks/parity_table.py",
        "tests/cli/test_parity_command.py",
        "tests/distributed/test_parity.py",
        "tests/planted.py",
        "tests/unit/test_parity_verdict.py",
        "src/lockstep/parity",
    ],
    "pictures": ["conf/callbacks/pictures.yaml", "src/lockstep/callbacks/pictures.py"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the Python package")
    parser.add_argument("--without", nargs="*", choices=sorted(ROOMS), default=[], metavar="ROOM", help=", ".join(sorted(ROOMS)))
    arguments = parser.parse_args()
    if not arguments.name.isidentifier() or not arguments.name.islower():
        parser.error(f"name={arguments.name}: accepted is a lower-case Python identifier")
    if _git("status", "--porcelain"):
        parser.error("the checkout has uncommitted changes; commit them first, so that you can see what this does")
    gone = [name for room in arguments.without for name in _take_out(room)]
    mentions = list(_mentions(gone))
    _rename(arguments.name)
    print(f"The package is src/{arguments.name}. Next: make test")
    if mentions:
        print("These lines mention what is gone:", *mentions, sep="\n  ")


def _take_out(room: str) -> Iterator[str]:
    """Deletes a room's files and what lists them; yields the names that may be mentioned elsewhere."""
    for path in map(Path, ROOMS[room]):
        if (ROOT / path).is_dir():
            shutil.rmtree(ROOT / path)
            yield ".".join(path.parts[1:])
            continue
        (ROOT / path).unlink(missing_ok=True)
        if path.parts[0] == "src":
            yield from _forget_module(ROOT / path)
        elif path.parts[:2] == ("conf", "callbacks"):
            _drop_lines(ROOT / "conf/callbacks/default.yaml", rf"  - {path.stem}\b.*")
        elif path.parts[0] == "scripts":
            yield str(path)
        elif path.parts[0] == "conf" and len(path.parts) > 2:
            yield f"{path.parts[1]}={path.stem}"


def _forget_module(module: Path) -> Iterator[str]:
    """Removes a module's import from its package, and the names that came from it from __all__."""
    init = module.with_name("__init__.py")
    imported = re.search(rf"^from \S+\.{module.stem} import (.+)$", init.read_text(), re.MULTILINE)
    names = imported.group(1).split(", ") if imported else []
    init.write_text(re.sub(rf"^from \S+\.{module.stem} import .+\n", "", init.read_text(), flags=re.MULTILINE))
    for name in names:
        listed = re.sub(rf'"{name}",? ?\n?( {{4}}(?="))?', "", init.read_text())
        init.write_text(listed.replace(", ]", "]"))
    yield from names


def _drop_lines(path: Path, pattern: str) -> None:
    path.write_text(re.sub(rf"^{pattern}\n", "", path.read_text(), flags=re.MULTILINE))


def _mentions(names: list[str]) -> Iterator[str]:
    for path in _text_files():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if path != Path(__file__) and any(re.search(rf"\b{re.escape(name)}\b", line) for name in names):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def _rename(name: str) -> None:
    for path in _text_files():
        text = path.read_text()
        if (renamed := re.sub(rf"\b{OLD}\b", name, text)) != text:
            path.write_text(renamed)
    (ROOT / "src" / OLD).rename(ROOT / "src" / name)
    (ROOT / ".venv" / "installed").unlink(missing_ok=True)  # make installs the package anew, under its name


def _text_files() -> Iterator[Path]:
    suffixes = {".py", ".yaml", ".yml", ".toml", ".md", ".sbatch", ""}
    for name in _git("ls-files").splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix in suffixes and not path.is_symlink():
            yield path


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
