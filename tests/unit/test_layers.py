"""The rooms of the house: imports point downward, and there is no circle."""

import ast
from pathlib import Path

import lockstep

SOURCE = Path(lockstep.__file__).parent
# From the top to the ground; what stands lower knows nothing of what stands higher. A module of the root is a room too.
ROOMS = ["cli", "reports", "sweeps", "parity", "batch_size", "build", "callbacks", "models", "datamodules", "nets", "trainer"]
ROOMS += ["runs", "checkpointing", "launchers", "config", "console", "imports", "counter_rng", "atomic_files", "errors"]


def imports(file: Path) -> set[str]:
    """The modules of this package that a file names in its imports, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lockstep"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if is_module(name) else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("lockstep.")}
    return found - {"lockstep"}


def is_module(name: str) -> bool:
    path = SOURCE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules() -> dict[str, set[str]]:
    """Each module by its name, and what it imports."""
    files = {file: ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts) for file in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): imports(file) for file, name in files.items() if name != "lockstep.__init__"}


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_room_has_its_place_and_there_are_at_most_twenty() -> None:
    assert {room(module) for module in modules()} == set(ROOMS)
    assert len(ROOMS) <= 20


def test_no_import_points_upward() -> None:
    arrows = {(a, b) for a, targets in modules().items() for b in targets}
    upward = [f"{a} imports {b}" for a, b in sorted(arrows) if ROOMS.index(room(a)) > ROOMS.index(room(b))]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = modules()
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way, module])
        if module not in done:
            for other in graph.get(module, ()):
                visit(other, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())
