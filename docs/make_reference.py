"""Write docs/reference.md: every key of conf/, its default, and the comment beside it.

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
    """Return the page."""
    parts = [HEAD, section("base.yaml", CONF / "base.yaml", "")]
    for group in GROUPS:
        files = sorted((CONF / group).glob("*.yaml"))
        parts += [f"## {group}\n", *(section(f"{group}={file.stem}", file, package(file, group)) for file in files)]
    return "\n".join(parts).rstrip() + "\n"


def package(file: Path, group: str) -> str:
    """Return the prefix of a file's keys: its `@package` line, else the group."""
    line = re.match(r"# @package (\S+)", file.read_text())
    return line[1].replace("_global_", "") if line else group.replace("/", ".")


def section(title: str, file: Path, prefix: str) -> str:
    """Return the section of a file: its head comment, and a table of its keys, with comments from other files of the group."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())
    head = [line.removeprefix("#").strip() for line in comment if not line.startswith("# @package")]
    rows = [row(key, default, meaning or other_meaning(key, file, prefix)) for key, default, meaning in keys(file, prefix)]
    table = ["| key | default | meaning |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"### {title}\n", escaped(" ".join(filter(None, head))), "", *table, ""])


def row(key: str, default: str, meaning: str) -> str:
    return f"| `{key}` | `{default}` | {escaped(meaning)} |"


def other_meaning(key: str, file: Path, prefix: str) -> str:
    """Return the comment of the key in another file of the folder; empty without one."""
    # gpt.yaml first, for gpt_nano.yaml
    files = sorted(file.parent.glob("*.yaml"), key=lambda other: (not file.stem.startswith(other.stem), other))
    others = (keys(other, prefix) for other in files)
    return next((meaning for values in others for name, _, meaning in values if name == key and meaning), "")


@functools.cache
def keys(file: Path, prefix: str) -> list[tuple[str, str, str]]:
    """Return (key, value as written, comment beside it) for each value of a YAML file."""
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
            line, (start, end) = lines[value.start_mark.line], (value.start_mark, value.end_mark)
            default = line[start.column : end.column if end.line == start.line else None].partition(" #")[0]
            yield key, default.strip(), line[start.column :].partition(" #")[2].strip()


def _comment_above(number: int, lines: list[str]) -> str:
    """Return the comment lines directly above a line; empty for the head comment of the file."""
    comment = [*itertools.takewhile(lambda line: line.startswith("#"), reversed(lines[:number]))]
    return "" if len(comment) == number else " ".join(line.removeprefix("#").strip() for line in reversed(comment))


def escaped(text: str) -> str:
    """Escape text for a Markdown table."""
    return re.sub(r"([|<])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(reference())
    print(PAGE)
