"""Writes docs/reference.md: every key of conf/, its default, and the meaning that stands beside it.

python docs/make_reference.py            # or: make reference
"""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONF, PAGE = ROOT / "conf", ROOT / "docs" / "reference.md"
GROUPS = ("model", "model/optimizer", "model/lr_scheduler", "datamodule", "trainer", "guards", "callbacks", "logger")
HEAD = """# Every key

Made from `conf/` by `make reference`. Each table is a file; a key is overridden on the command line as `KEY=VALUE`, an option is
chosen as `GROUP=OPTION`. `python train.py --cfg job` prints the composed config.
"""


def reference() -> str:
    """The whole page."""
    parts = [HEAD, section("train.yaml", CONF / "train.yaml", "")]
    for group in GROUPS:
        parts.append(f"## {group}\n")
        for file in sorted((CONF / group).glob("*.yaml")):
            parts.append(section(f"{group}={file.stem}", file, group.replace("/", ".")))
    return "\n".join(parts).rstrip() + "\n"


def section(title: str, file: Path, prefix: str) -> str:
    """One file: what its first lines of comment say, and a table of its keys. What a key means is said in one file of a group."""
    lines = file.read_text().splitlines()
    said = [
        line.removeprefix("#").strip() for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    ]
    words = " ".join(line for line in said if line and not line.startswith("@package"))
    known = {key: meaning for other in sorted(file.parent.glob("*.yaml")) for key, _, meaning in keys(other, prefix) if meaning}
    rows = [
        f"| `{key}` | `{default}` | {escaped(meaning or known.get(key, ''))} |" for key, default, meaning in keys(file, prefix)
    ]
    table = ["| key | default | meaning |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"### {title}\n", escaped(words), "", *table, ""])


def keys(file: Path, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Each value of a YAML file: its key, the value as it is written, and the comment beside it."""
    text = file.read_text()
    root = yaml.compose(text)
    if isinstance(root, yaml.MappingNode):
        yield from _values(root, prefix, text.splitlines())


def _values(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for name, value in node.value:
        key = f"{prefix}.{name.value}".strip(".")
        if name.value == "defaults" or name.value.startswith("_"):
            continue
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _values(value, key, lines)
        else:
            default, _, meaning = lines[value.start_mark.line][value.start_mark.column :].partition(" #")
            yield key, default.strip(), meaning.strip()


def escaped(text: str) -> str:
    """For a Markdown table."""
    return re.sub(r"([|<])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(reference())
    print(PAGE)
