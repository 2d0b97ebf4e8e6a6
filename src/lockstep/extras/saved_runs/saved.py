"""A finished run, opened again: its config with changes, its checkpoints."""

from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from lockstep.config.checkpoint_file import refuse_url
from lockstep.config.overrides import override_key
from lockstep.config.targets import targets_in
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import run_id
from lockstep.runs.saved import FILE, read_config


def saved_config(run_dir: Path, overrides: list[str]) -> DictConfig:
    """The config a run was composed of, with values overridden in Hydra's grammar; groups can't be chosen anew."""
    refuse_url("RUN_DIR", run_dir)
    cfg = read_config(run_dir)
    if cfg is None:
        raise config_error("RUN_DIR", run_dir, f"has no {FILE}; name the directory of a run")
    cfg.fork, cfg.run_id = None, None
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        if override.is_delete() or override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: accepted is key=value")
        if not override.is_add() and OmegaConf.select(cfg, key, default=cfg) is cfg:
            raise ConfigError(f"{override.input_line}: unknown key; see {run_dir / FILE}")
        if OmegaConf.is_dict(OmegaConf.select(cfg, key)) and not isinstance(override.value(), dict):
            raise ConfigError(
                f"{override.input_line}: a group can't be chosen anew; accepted are values inside it, {key}.NAME=VALUE"
            )
        OmegaConf.update(cfg, key, override.value(), force_add=True)
    return cfg


def config_to_evaluate(run_dir: Path, overrides: list[str], folder: str) -> DictConfig:
    """The run's config, less what only training needs: callbacks are those that `overrides` name. An evaluation has a directory
    and a record of its own, in a folder of the run's directory."""
    cfg = saved_config(run_dir, overrides)
    keys = [override_key(override).split(".") for override in overrides]
    kept = {"progress", *(key[1] for key in keys if key[0] == "callbacks" and len(key) > 1)}
    if cfg.run_dir == str(run_dir):
        cfg.run_dir = str(run_dir / folder / run_id())
    cfg.callbacks = {name: callback for name, callback in (cfg.get("callbacks") or {}).items() if name in kept}
    cfg.logger, cfg.init_without = {}, None
    cfg.events = {}  # an evaluation is not copied
    cfg.test = True  # whatever the training did
    cfg.trainer.accumulate_grad_batches, cfg.trainer.num_nodes = 1, 1
    if "global_batch_size" in (cfg.datamodule or ()):
        cfg.datamodule.global_batch_size = None  # counts do not depend on how the data is divided
    return cfg


def load_saved_model(cfg: DictConfig, checkpoint: Path) -> Any:
    """The trained model of a run's checkpoint, which may be built of whatever the run's own config names."""
    from lockstep.models.from_checkpoint import load_model  # torch

    return load_model(checkpoint, allow={str(target) for _, target in targets_in(OmegaConf.to_container(cfg.model))})


def find_checkpoint(run_dir: Path, wanted: str | None) -> Path:
    """best, last or a path; by default the best, or the last where none was the best."""
    folder = run_dir / "checkpoints"
    refuse_url("RUN_DIR", run_dir)
    if wanted not in (None, "best", "last"):
        return Path(wanted)
    names = [wanted] if wanted else ["best", "last"]
    paths = [folder / f"{name}.ckpt" for name in names if (folder / f"{name}.ckpt").is_file()]
    if not paths:
        raise config_error("RUN_DIR", run_dir, f"has no checkpoint {' or '.join(names)} in {folder}")
    return paths[0]
