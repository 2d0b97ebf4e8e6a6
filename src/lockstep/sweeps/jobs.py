"""One job of a sweep: what it is, whatever its number, and the command that runs it."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan


@dataclass(frozen=True)
class Job:
    """`key` identifies the job across resumed and extended sweeps; `width` is the number of slots of `pool` it takes."""

    key: str
    overrides: tuple[str, ...]
    directory: Path
    pool: str
    width: int
    world_size: int
    optimized_metric: str
    optimized_mode: str
    data_dir: str | None
    command: tuple[str, ...]


def identity(cfg: DictConfig) -> str:
    """A hash of the composed config less the paths: where things are is not what is computed."""
    content: Any = OmegaConf.to_container(cfg, resolve=False)
    content.pop("run_dir", None)
    content["datamodule"].pop("data_dir", None)
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def directory_name(overrides: Sequence[str], key: str) -> str:
    """Readable and unique: the values overridden, and the identity."""
    pairs = (override.partition("=") for override in overrides)
    values = "_".join(f"{name.rpartition('.')[2]}={value}" for name, _, value in pairs)
    readable = re.sub(r"[^A-Za-z0-9=.+-]+", "_", values).strip("_.")[:80]
    return f"{readable}_{key}" if readable else key


def pool_of(plan: Plan) -> tuple[str, int]:
    """GPU jobs take one slot per device; a CPU job takes one slot however many processes it has."""
    return ("gpu", plan.devices) if plan.accelerator == "gpu" else ("cpu", 1)


def varying(jobs: Sequence[Sequence[str]]) -> list[str]:
    """The override keys in which the jobs differ, in the order of their first appearance."""
    values: dict[str, set[Any]] = {}
    for overrides in jobs:
        for override in overrides:
            key, _, value = override.partition("=")
            values.setdefault(key, set()).add(value)
    counted = {key: sum(any(o.partition("=")[0] == key for o in overrides) for overrides in jobs) for key in values}
    return [key for key, found in values.items() if len(found) > 1 or counted[key] < len(jobs)]
