"""docs/how-it-works.md follows the code: what it names is there, and each is called by one named before it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text()
# "## A training step", then lines such as: 1. `train.py::main`: builds and fits
WAYS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
MOST_FILES = {"A run": 10, "A step": 6, "A sweep's job": 12, "A resumption": 10}
LINES = 300  # of a file of the first way
STEP = re.compile(r"^\d+\. `([^`:]+)::([^`]+)`(.*)$", re.MULTILINE)
FRAMEWORKS = ("Hydra calls", "Lightning calls", "torch calls")


def text_with(file: str, name: str) -> str:
    """The text of a file; fails where it has no such function, method or class."""
    text = (ROOT / file).read_text()
    nodes: list[ast.AST] = [ast.parse(text)]
    for part in name.split("."):
        nodes = [child for node in nodes for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part]
        assert nodes, f"{file} has no {name}"
    return text


@pytest.mark.parametrize(("title", "text"), WAYS, ids=[way[0] for way in WAYS])
def test_each_way_leads_from_one_function_to_the_next(title: str, text: str) -> None:
    steps = STEP.findall(text)
    assert len(steps) >= 4
    assert len({file for file, _, _ in steps}) <= MOST_FILES[title]
    before = ""
    for file, name, words in steps:
        source = text_with(file, name)
        is_called = re.search(rf"\b{name.rpartition('.')[2]}\(", before) is not None
        assert not before or is_called or any(word in words for word in FRAMEWORKS), f"{title}: nothing before it calls {name}"
        before += source


def test_the_first_way_is_a_run_and_each_of_its_files_is_read_in_one_go() -> None:
    assert [title for title, _ in WAYS] == list(MOST_FILES)
    for file, _, _ in STEP.findall(WAYS[0][1]):
        assert len((ROOT / file).read_text().splitlines()) <= LINES, file
