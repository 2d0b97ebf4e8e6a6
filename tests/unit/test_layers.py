"""The packages of the core: imports point downward, there is no circle, and the core knows no option."""

import ast
import graphlib
from pathlib import Path

from house import is_option

import lockstep

SOURCE = Path(lockstep.__file__).parent
# From the top to the bottom; what stands lower imports nothing that stands higher. A module of the root is one, too.
ROOMS = ["__main__", "plain_lightning", "cli", "sweeps", "build", "callbacks", "models", "datamodules", "nets", "strategies"]
ROOMS += ["trainer", "runs", "checkpointing", "launchers", "config", "metrics", "noise", "console", "places"]
ROOMS += ["atomic_files", "errors"]


def imports(file: Path) -> set[str]:
    """The modules of this package that a file names in its imports, those inside functions too."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lockstep"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {name if is_module(name) else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.startswith("lockstep.")}
    return modules - {"lockstep"}


def is_module(name: str) -> bool:
    path = SOURCE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules() -> dict[str, set[str]]:
    """Each module by its name, and what it imports."""
    files = {file: ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts) for file in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): imports(file) for file, name in files.items() if name != "lockstep.__init__"}


IMPORTED = modules()


def room(module: str) -> str:
    return module.split(".")[1]


def is_core(module: str) -> bool:
    place = SOURCE.parent / module.replace(".", "/")
    return not is_option(place if place.is_dir() else place.with_suffix(".py"))


def test_every_package_has_its_place_and_there_are_at_most_twenty_one() -> None:
    assert {room(module) for module in IMPORTED if is_core(module)} == set(ROOMS)
    assert len(ROOMS) <= 21


def test_the_core_imports_what_is_below_it_no_option_and_nothing_in_a_circle() -> None:
    from_core = [(a, b) for a, targets in sorted(IMPORTED.items()) for b in sorted(targets) if is_core(a)]
    wrong = [(a, b) for a, b in from_core if not is_core(b) or ROOMS.index(room(a)) > ROOMS.index(room(b))]
    assert [f"{a} imports {b}" for a, b in wrong] == []
    graphlib.TopologicalSorter(IMPORTED).prepare()  # raises CycleError, with the modules
