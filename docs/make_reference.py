"""Writes docs/reference.md: every key of conf/, its default, and the meaning that stands beside it.

python docs/make_reference.py            # or: make reference
"""

import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONF, PAGE = ROOT / "conf", ROOT / "docs" / "reference.md"
GROUPS = (
    "model",
    "model/optimizer",
    "model/lr_scheduler",
    "model/adapt",
    "datamodule",
    "datamodule/curriculum",
    "trainer",
    "trainer/strategy",
    "trainer/plan",
    "trainer/communication",
    "guards",
    "callbacks",
    "logger",
    "profiler",
    "hydra/launcher",
)
HEAD = """# Every key

Made from `conf/` by `make reference`. Each table is a file; a key is overridden on the command line as `KEY=VALUE`, an option is
chosen as `GROUP=OPTION`. `python train.py --cfg job` prints the composed config.
"""


def reference() -> str:
    """The whole page."""
    parts = [HEAD, section("base.yaml", CONF / "base.yaml", "")]
    for group in GROUPS:
        files = sorted((CONF / group).glob("*.yaml"))
        parts += [f"## {group}\n", *(section(f"{group}={file.stem}", file, package(file, group)) for file in files)]
    return "\n".join(parts).rstrip() + "\n"


def package(file: Path, group: str) -> str:
    """What comes before the keys of a group's file: the group, or what its first line says instead."""
    said = re.match(r"# @package (\S+)", file.read_text())
    return said[1].replace("_global_", "") if said else group.replace("/", ".")


def section(title: str, file: Path, prefix: str) -> str:
    """One file: what its first lines of comment say, and a table of its keys. What a key means is said in one file of a group."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())
    said = [line.removeprefix("#").strip() for line in comment if not line.startswith("# @package")]
    rows = [row(key, default, meaning or said_elsewhere(key, file, prefix)) for key, default, meaning in keys(file, prefix)]
    table = ["| key | default | meaning |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"### {title}\n", escaped(" ".join(filter(None, said))), "", *table, ""])


def row(key: str, default: str, meaning: str) -> str:
    return f"| `{key}` | `{default}` | {escaped(meaning)} |"


def said_elsewhere(key: str, file: Path, prefix: str) -> str:
    """What another file of the same folder says of the key."""
    others = (keys(other, prefix) for other in sorted(file.parent.glob("*.yaml")))
    return next((meaning for values in others for name, _, meaning in values if name == key and meaning), "")


@functools.cache
def keys(file: Path, prefix: str) -> list[tuple[str, str, str]]:
    """Each value of a YAML file: its key, the value as it is written, and the comment beside it."""
    text = file.read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return list(_values(root, prefix, text.splitlines())) if isinstance(root, yaml.MappingNode) else []


def _values(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for name, value in node.value:
        key = f"{prefix}.{name.value}".strip(".")
        if name.value == "defaults" or name.value.startswith("_"):
            continue
        if isinstance(value, yaml.MappingNode) and value.value:
            if above := _comment_above(name.start_mark.line, lines):
                yield key, "{...}", above
            yield from _values(value, key, lines)
        else:
            default, _, meaning = lines[value.start_mark.line][value.start_mark.column :].partition(" #")
            yield key, default.strip(), meaning.strip()


def _comment_above(number: int, lines: list[str]) -> str:
    """The lines of comment between the one of this number and an empty line; nothing for those that open the file."""
    comment = [*itertools.takewhile(lambda line: line.startswith("#"), reversed(lines[:number]))]
    return "" if len(comment) == number else " ".join(line.removeprefix("#").strip() for line in reversed(comment))


def escaped(text: str) -> str:
    """For a Markdown table."""
    return re.sub(r"([|<])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(reference())
    print(PAGE)
