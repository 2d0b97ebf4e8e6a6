"""What a person sees on the terminal; plain text where the output is not one."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree


def say(line: str) -> None:
    """One line for a person who made a mistake or has to know, on standard error."""
    print(" ".join(line.split()), file=sys.stderr, flush=True)


def show_config(cfg: DictConfig) -> None:
    """The composed config: a tree on a terminal, YAML elsewhere."""
    if not sys.stdout.isatty():
        print(OmegaConf.to_yaml(cfg, resolve=True), flush=True)
        return
    tree = Tree("[bold]config")
    _grow(tree, OmegaConf.to_container(cfg, resolve=True))
    Console().print(tree)


def _grow(tree: Tree, content: Any) -> None:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            _grow(tree.add(f"[cyan]{key}"), value)
        else:
            tree.add(f"[cyan]{key}[/]: {escape(str(value))}", highlight=True)


def show_result(run_dir: Path, result: dict[str, Any]) -> None:
    """The closing table: metrics, time, throughput, and what to do next."""
    rows = {name: "not a finite number" if value is None else f"{value:.6g}" for name, value in result["metrics"].items()}
    rows |= {"wall time": f"{result['wall_time']:.1f} s", "world size": str(result["world_size"])}
    if result["train_time"]:
        rows |= {"throughput": f"{result['samples_per_second']:,.0f} samples/s"}
    show_rows(rows | {"run directory": _relative(run_dir)})
    if result["train_time"]:
        folder = shlex.quote(_relative(run_dir))
        print(f"\nNext:\n  tensorboard --logdir {folder}\n  python scripts/evaluate.py {folder}", flush=True)


def show_preempted(run_dir: Path, reason: str) -> None:
    """How to go on."""
    how = f" Continue it: python train.py resume={shlex.quote(_relative(run_dir))}" if (run_dir / ".hydra").is_dir() else ""
    begins = "" if any(run_dir.glob("checkpoints/*.ckpt")) else " No checkpoint was saved: it will begin anew."
    say(f"The run was {reason}.{how}{begins}")


def aligned(rows: Sequence[Sequence[str]], right: bool = False) -> str:
    """Columns of plain text; `right` sets all but the first flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = [str.ljust, *[str.rjust if right else str.ljust] * (len(widths) - 1)]
    lines = ("  ".join(side(cell, width) for side, cell, width in zip(pad, row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def show_rows(rows: dict[str, str]) -> None:
    """Names and values in two columns."""
    if not sys.stdout.isatty():
        print(aligned([*rows.items()]), flush=True)
        return
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(f"[cyan]{name}", escape(value))
    Console().print(table)


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
