"""One job of a sweep: what it is, whatever its number, and the command that runs it."""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import flat
from lockstep.config.plan import Plan

REPEATS = ("seed", "datamodule.fold")  # keys over which results are averaged
_LONGEST_NAME = 200  # bytes; file systems take 255


@dataclass(frozen=True)
class Job:
    """`key` identifies the job across resumed and extended sweeps; `width` is the number of slots of `pool` it takes.

    config: the composed config, from which `key` is made.
    swept: the keys of the overrides that are not the same for all jobs.
    fresh: in interpreters of its own, not forked from one that has imported torch.
    stop_deadline: seconds in which the job, asked to stop, ends by itself.
    resources: what it takes, in the words of the one who runs it.
    composed: the config with Hydra's own part, as the job's run has it.
    global_batch_size: in samples, of all its processes.
    """

    key: str
    overrides: tuple[str, ...]
    directory: Path
    pool: str
    width: int
    world_size: int
    optimized_metric: str
    optimized_mode: str
    command: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict, compare=False)
    swept: tuple[str, ...] = ()
    fresh: bool = False
    stop_deadline: float = 0.0
    resources: tuple[str, ...] = ()
    composed: DictConfig | None = field(default=None, compare=False)
    global_batch_size: int | None = None


def computed_config(cfg: DictConfig) -> dict[str, Any]:
    """Returns the composed config less what does not change a result: paths, how processes are started,
    and where the run is copied."""
    content: Any = OmegaConf.to_container(cfg, resolve=False)
    for key in ("run_dir", "run_id", "forked_from", "fresh_processes", "mirror"):
        content.pop(key, None)
    (content["datamodule"] or {}).pop("data_dir", None)
    return json.loads(json.dumps(content, default=str))


def identity(content: dict[str, Any]) -> str:
    """Returns a hash of a job's `computed_config`."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def repetition(config: dict[str, Any]) -> str:
    """The identity less the keys that results are averaged over: jobs of one repetition compute the same quantity."""
    return identity({key: value for key, value in flat(config).items() if key not in REPEATS})


def directory_name(overrides: Sequence[str], key: str) -> str:
    """Readable and unique: the values overridden, and the identity. Long values lose their middle, and a long name its end."""
    pairs = [override.partition("=")[::2] for override in overrides]
    parts = [re.sub(r"[^\w=.+~-]+", "_", f"{name.rpartition('.')[2]}={_shortened(value)}") for name, value in pairs]
    readable = "_".join(parts).strip("_.")
    if len(readable.encode()) > _LONGEST_NAME:
        readable = readable.encode()[:_LONGEST_NAME].decode(errors="ignore") + "~"
    return f"{readable}_{key}" if readable else key


def _shortened(value: str, longest: int = 40) -> str:
    return value if len(value) <= longest else f"{value[: longest // 2]}~{value[-(longest // 2) :]}"


def choose_pool(plan: Plan) -> tuple[str, int]:
    """Returns a job's pool and how many slots of it the job takes: a GPU job one per device, a CPU job one."""
    return ("gpu", plan.devices) if plan.accelerator == "gpu" else ("cpu", 1)


def varying(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Returns the override keys in which the jobs differ, in the order of their first appearance."""
    values = [{key: value for key, _, value in (o.partition("=") for o in overrides)} for overrides in jobs]
    return [key for key in dict.fromkeys(itertools.chain(*values)) if len({job.get(key) for job in values}) > 1]
