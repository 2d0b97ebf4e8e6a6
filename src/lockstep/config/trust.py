"""Whether a config was read from a directory, which may be a stranger's; and which targets it may name then."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.checkpoint_file import split_step
from lockstep.config.targets import Trust, resolve

ALLOW = "allow"  # the root key: null where a config was read from no directory


def source_directory(cfg: DictConfig) -> Path | None:
    """Returns the directory that a config was read from, None where a command line alone says what it is; the working directory,
    in which nothing is trusted then, while a sweep has not given the run its own."""
    if OmegaConf.select(cfg, ALLOW) is None:
        return None
    if not OmegaConf.select(cfg, "resume") and (checkpoint := OmegaConf.select(cfg, "begin_from")) is not None:
        return split_step(checkpoint)[0].parent.parent
    places = (OmegaConf.select(cfg, key, throw_on_resolution_failure=False) for key in ("resume", "hydra.sweep.dir", "run_dir"))
    return next((Path(place) for place in places if place), Path.cwd())


def get_trust(cfg: DictConfig) -> Trust | None:
    """Returns what a config that was read from a directory may name; None where it was not."""
    directory = source_directory(cfg)
    return None if directory is None else Trust.for_directory(directory, tuple(cfg.allow))


def check_targets(cfg: DictConfig, trust: Trust) -> None:
    """Raises ConfigError for the first target in the config that may not be named."""
    for key, target in targets_in(OmegaConf.to_container(cfg, resolve=True)):
        resolve(key, target, trust)


def targets_in(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Each `_target_` and the key of the group that it is in."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield key, node["_target_"]
        for name, value in node.items():
            yield from targets_in(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list | tuple):
        for number, value in enumerate(node):
            yield from targets_in(value, f"{key}.{number}")
