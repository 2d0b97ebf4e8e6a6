"""scripts/remove.py: a capability goes with all that belongs to it, and what is left does not know it."""

import ast
import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import remove
from checkouts import checkout
from commands import LONG, python
from hydra import compose, initialize_config_dir

NAMES = sorted(remove.extras())
pytestmark = pytest.mark.skipif(not NAMES, reason="all capabilities have been taken out")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def copy(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own, in which the script's functions work."""
    folder = shutil.copytree(original, tmp_path / "copy", ignore=shutil.ignore_patterns(".git"))
    monkeypatch.setattr(remove, "ROOT", folder)
    monkeypatch.setattr(remove, "EXTRAS", next((folder / "src").glob("*/extras")))
    return folder


def with_those_that_need(name: str) -> list[remove.Extra]:
    """The extra, and all that can't do without it."""
    present, gone = remove.extras(), {name}
    while more := {extra.name for extra in present.values() if gone & set(extra.needs)} - gone:
        gone |= more
    return [present[one] for one in sorted(gone)]


@functools.cache  # for most files are the same in every copy
def imported(text: str) -> set[str]:
    """The modules that a program imports, those inside functions too."""
    modules = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def missing(command: str, copy: Path) -> list[str]:
    """The files and the options of config groups that a command of a page names and that are not there."""
    words = shlex.split(command, comments=True)
    files = [word for word in words[1:2] if not (copy / word).is_file()]
    options = [match.groups() for word in words if (match := re.fullmatch(r"\+?([a-z_]+(?:/\w+)*)=\[?([a-z][\w,]*)\]?", word))]
    groups = [(copy / "conf" / group, option.split(",")) for group, option in options if not group.startswith("hydra/")]
    groups = [(folder, names) for folder, names in groups if folder.is_dir() or folder.parent != copy / "conf"]
    return files + [f"{folder}/{name}" for folder, names in groups for name in names if not (folder / f"{name}.yaml").is_file()]


def commands_in(copy: Path) -> list[str]:
    """Those of all pages that tests run."""
    pages = [copy / "README.md", *(copy / "docs").glob("*.md")]
    blocks = [block for page in pages for block in remove.BLOCK.finditer(page.read_text()) if block[1] is None]
    return [line for block in blocks if block[2] == "bash" for line in block["text"].replace("\\\n", " ").splitlines() if line]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_does_not_know_it(name: str, copy: Path) -> None:
    gone = with_those_that_need(name)
    remove.remove(gone)
    packages = [f"{remove.PACKAGE}.{extra.name}" for extra in gone]
    importing = {
        f"{file.relative_to(copy)} imports {module}"
        for folder in ("src", "scripts", "tests", "benchmarks")
        for file in (copy / folder).rglob("*.py")
        for module in imported(file.read_text())
        if any(module == package or module.startswith(f"{package}.") for package in packages)
    }
    assert importing == set()
    configs = [file for file in (copy / "conf").rglob("*.yaml") if any(f"{package}." in file.read_text() for package in packages)]
    assert configs == []
    assert [str(file) for file in (copy / "conf").rglob("*.yaml") if [*remove._lines_of_defaults(file)]] == []
    assert [command for command in commands_in(copy) if missing(command, copy)] == []
    with initialize_config_dir(str(copy / "conf"), version_base="1.3"):
        assert compose("train", return_hydra_config=True).model


TESTED_AND_TRAINED = """
import runpy, sys
import pytest
# a module that can't be collected is an error, even where its tests are not wanted
wanted = "test_layers.py or test_build.py or test_reference.py or test_supervisor.py"
if code := pytest.main(["-q", "-p", "no:cacheprovider", "-k", wanted]):
    sys.exit(code)
sys.argv = ["train.py", "debug=fast", "trainer=cpu"]
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.timeout(LONG + 20)
def test_the_core_trains_and_its_tests_are_collected_without_any(copy: Path) -> None:
    """In one interpreter, which imports everything once; how ranks are started there is told by test_supervisor.py."""
    remove.remove(list(remove.extras().values()))
    folders = [*(copy / "tests" / "support").iterdir(), copy / "src"]
    done = python("-c", TESTED_AND_TRAINED, cwd=copy, timeout=LONG, PYTHONPATH=":".join(map(str, folders)))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert " passed, " in done.stdout
    assert [json.loads(path.read_text())["world_size"] for path in copy.glob("logs/*/*/metrics.json")] == [1]


def test_one_that_others_need_is_refused_and_these_are_named_at_once(original: Path) -> None:
    present = remove.extras()
    needed = next(extra.needs[0] for extra in present.values() if extra.needs)
    done = subprocess.run([sys.executable, "scripts/remove.py", needed], cwd=original, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"NAME={needed}: needed by " in done.stderr
    assert (original / "src" / "lockstep" / "extras" / needed).is_dir()
    accepted = done.stderr.partition("accepted is ")[2].split()
    assert {extra.name for extra in present.values() if needed in extra.needs} < {*accepted}
    assert remove.needing({*accepted}, present) == []


def test_a_name_that_is_not_there_is_refused(original: Path) -> None:
    done = subprocess.run([sys.executable, "scripts/remove.py", "transformers"], cwd=original, capture_output=True, text=True)
    assert done.returncode == 2
    assert "NAME=transformers: accepted is any_batch, " in done.stderr


def test_a_page_loses_commands_of_what_is_gone_and_blocks_that_have_no_other() -> None:
    page = "A\n\n```bash\npython train.py a=b\npython train.py model/net=[x,vit] \\\n  c=d\n```\n\n<!-- not run: x -->\n```bash\n"
    page += "python scripts/gone.py\n```\n\n```python\nimport lockstep.extras.vit.net\n```\n\nB\n"
    files = (remove.ROOT / "conf" / "model" / "net" / "vit.yaml", remove.ROOT / "scripts" / "gone.py")
    extra = remove.Extra("vit", "", files, (), ())
    assert remove._without_commands(page, [extra]) == "A\n\n```bash\npython train.py a=b\n```\n\nB\n"


def test_a_row_of_a_page_that_names_a_test_that_is_gone_goes_and_a_dead_link_becomes_its_text(copy: Path) -> None:
    page = copy / "docs" / "page.md"
    page.write_text(
        "| [Vision](vit.md) | x |\n| a | `test_gone.py::test_it` |\n| b | `test_build.py::test_it` |\nSee [this](vit.md#x).\n"
    )
    assert remove._without_what_is_gone(page) == "| b | `test_build.py::test_it` |\nSee this.\n"
