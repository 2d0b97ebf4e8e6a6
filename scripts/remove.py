"""Takes capabilities out of the checkout:  python scripts/remove.py NAME [NAME ...]

    python scripts/remove.py              # lists them, each with what it is for
    python scripts/remove.py vit airbench
    python scripts/remove.py --all

Each is a folder of src/lockstep/extras. Its code, tests, configs, page, scripts and optional dependencies go, and so do the
lines of other configs and pages that name them, and the commands of other pages that use them. It is refused while another
capability, which stays, needs it. Run it on a clean checkout, so that `git diff` shows what it has done.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = next((ROOT / "src").glob("*/extras"))
PACKAGE = f"{EXTRAS.parent.name}.extras"
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")  # in Markdown
BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n)?```(bash|python)\n(?P<text>.*?)^```\n\n?", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:.*\\\n)*.*\n")  # with the lines that it goes on in


@dataclass(frozen=True)
class Extra:
    """What the `__init__` of a capability says of it; reading it imports nothing."""

    name: str
    purpose: str
    files: tuple[Path, ...]
    needs: tuple[str, ...]
    dependencies: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "Extra":
        tree = ast.parse((folder / "__init__.py").read_text())
        values: dict[str, Any] = {"FILES": [], "NEEDS": [], "OPTIONAL_DEPENDENCIES": []} | dict(_constants(tree))
        files = [*(ROOT / file for file in values["FILES"]), folder, ROOT / "tests" / "extras" / folder.name]
        purpose = (ast.get_docstring(tree) or "").partition("\n")[0]
        return cls(folder.name, purpose, tuple(files), tuple(values["NEEDS"]), tuple(values["OPTIONAL_DEPENDENCIES"]))


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            yield target, ast.literal_eval(node.value)


def extras() -> dict[str, Extra]:
    return {init.parent.name: Extra.read(init.parent) for init in sorted(EXTRAS.glob("*/__init__.py"))}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python scripts/remove.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every capability")
    arguments = parser.parse_args()
    present = extras()
    names = set(present) if arguments.all else set(arguments.names)
    if not names:
        print("\n".join(f"{extra.name:<14} {extra.purpose}" for extra in present.values()))
        return
    if unknown := sorted(names - set(present)):
        parser.error(f"NAME={unknown[0]}: accepted is {', '.join(present)}")
    if more := needing(names, present):
        asked = " ".join(sorted(names))
        parser.error(f"NAME={asked}: needed by {', '.join(more)}; accepted is {asked} {' '.join(more)}")
    if _git("status", "--porcelain"):
        parser.error("the checkout has uncommitted changes; commit them first, so that you can see what this does")
    remove([present[name] for name in sorted(names)])
    print(f"Removed {', '.join(sorted(names))}. See git diff. Next: make lock, if packages are to go too; make test")


def needing(names: set[str], present: dict[str, Extra]) -> list[str]:
    """The others that need one of these, or one that does."""
    found = set(names)
    while more := {extra.name for extra in present.values() if found & {*extra.needs}} - found:
        found |= more
    return sorted(found - names)


def remove(gone: list[Extra]) -> None:
    """Deletes what belongs to each, then the lines of other files that name it."""
    for path in [path for extra in gone for path in extra.files]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    _drop_empty_folders(ROOT / "conf")
    for file in sorted((ROOT / "conf").rglob("*.yaml")):
        _drop_lines(file, {*_lines_with_names(file, gone), *_lines_of_defaults(file)})
    _edit_dependencies(ROOT / "pyproject.toml", gone)
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        page.write_text(_without_commands(_without_what_is_gone(page), gone))
    navigation = ROOT / "mkdocs.yml"
    pages = {path.name for extra in gone for path in extra.files if path.suffix == ".md"}
    _drop_lines(navigation, {i for i, line in enumerate(_lines(navigation)) if line.rpartition(" ")[2] in pages})
    subprocess.run([sys.executable, ROOT / "docs" / "make_reference.py"], check=True, stdout=subprocess.DEVNULL)


def _drop_empty_folders(root: Path) -> None:
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _drop_lines(file: Path, numbers: set[int]) -> None:
    if numbers:
        file.write_text("".join(f"{line}\n" for i, line in enumerate(_lines(file)) if i not in numbers))


def _lines_with_names(file: Path, gone: list[Extra]) -> Iterator[int]:
    """The lines whose value is built from one of these extras, and those of the help that tell of its scripts and groups or are
    commands that use it."""
    targets = [re.escape(f"{PACKAGE}.{extra.name}.") for extra in gone]
    paths = [path.relative_to(ROOT) for extra in gone for path in extra.files]
    scripts = [rf"scripts/{path.name}|^ +{EXTRAS.parent.name} {path.stem} " for path in paths if path.parts[0] == "scripts"]
    groups = [rf"^ +{path.relative_to('conf')} " for path in paths if path.parts[0] == "conf" and not path.suffix]
    commands = rf"^ +python .*(?:{'|'.join(_uses(gone))})"
    pattern = re.compile("|".join([*targets, *scripts, *groups, commands]))
    return (i for i, line in enumerate(_lines(file)) if pattern.search(line) and not line.startswith("#"))


def _lines_of_defaults(file: Path) -> Iterator[int]:
    """The entries of its defaults list for which there is no config any more: neither the option, nor, for null, the group."""
    root = yaml.compose(file.read_text(), Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    entries = [entry for key, value in pairs if key.value == "defaults" for entry in value.value]
    return (entry.start_mark.line for entry in entries if not _has_config(file, entry))


def _has_config(file: Path, entry: yaml.Node) -> bool:
    """Does the entry of the file's defaults list name a config that there is?"""
    if isinstance(entry, yaml.MappingNode):
        ((key, value),) = entry.value
        group, option = key.value.removeprefix("override ").partition("@")[0], value.value
    else:
        group, option = "/" if entry.value.startswith("/") else "", entry.value.partition("@")[0].lstrip("/")
    folder = ROOT / "conf" / group[1:] if group.startswith("/") else file.parent / group
    if option in ("null", ""):
        return folder.is_dir()
    is_of_hydra = "hydra" in folder.relative_to(ROOT).parts  # which has options of its own, as plugins have
    return option == "_self_" or is_of_hydra or (folder / f"{option}.yaml").is_file()


def _edit_dependencies(file: Path, gone: list[Extra]) -> None:
    """Takes out their groups of optional dependencies, what refers to these, and the data of their packages."""
    groups = "|".join(name for extra in gone for name in extra.dependencies) or "$^"
    names = "|".join(extra.name for extra in gone)
    own = re.compile(rf'({groups}) = \[|\s*"\w+\[({groups})\]"|"{re.escape(PACKAGE)}\.({names})"')
    _drop_lines(file, {i for i, line in enumerate(_lines(file)) if own.match(line)})


def _without_what_is_gone(page: Path) -> str:
    """The page without links and pictures that lead nowhere (a link becomes its text), and without the rows of its tables that
    begin with such a link or name a test that is gone."""

    def is_dead(link: re.Match[str]) -> bool:
        target = link["target"].partition("#")[0]
        return bool(target) and "://" not in target and not (page.parent / target).exists()

    def is_kept(line: str) -> bool:
        first = LINK.match(line.removeprefix("| ")) if line.startswith("| ") else None
        tests = re.findall(r"`(test_\w+\.py)::", line) if line.startswith("|") else []
        return not (first and is_dead(first)) and all(any((ROOT / "tests").rglob(test)) for test in tests)

    text = "".join(filter(is_kept, page.read_text().splitlines(keepends=True)))
    return LINK.sub(lambda link: ("" if link["picture"] else link["text"]) if is_dead(link) else link[0], text)


def _without_commands(text: str, gone: list[Extra]) -> str:
    """A page without the commands, and the blocks of Python, that use one of these extras; without a block that has none left."""
    used = re.compile("|".join(_uses(gone)))

    def what_stays(block: re.Match[str]) -> str:
        commands = [block["text"]] if block[2] == "python" else COMMAND.findall(block["text"])
        kept = "".join(command for command in commands if not used.search(command))
        return block[0].replace(block["text"], kept) if kept.strip() else ""

    return BLOCK.sub(what_stays, text)


def _uses(gone: list[Extra]) -> Iterator[str]:
    """How a command or a program shows that it uses one of them: by the package, a file, an option or a group of configs."""
    for extra in gone:
        yield rf"{re.escape(PACKAGE)}\.{extra.name}\b"
        for path in (path.relative_to(ROOT) for path in extra.files):
            yield re.escape(str(path))
            if path.parts[0] == "conf":
                group, option = (path.parent, rf"\S*\b{path.stem}\b") if path.suffix else (path, "")
                yield rf"(?<![\w/.]){group.relative_to('conf')}={option}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
