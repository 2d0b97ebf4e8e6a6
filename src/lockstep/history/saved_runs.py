"""A finished run, opened again: its config with changes, its checkpoints."""

from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import override_key
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import run_id
from lockstep.runs.saved import FILE, read_config


def saved_config(run_dir: Path, overrides: list[str]) -> DictConfig:
    """Return the config of a run, with values overridden in Hydra's grammar; groups can't be chosen anew."""
    cfg = read_config(run_dir)
    if cfg is None:
        raise config_error("RUN_DIR", run_dir, f"is not the directory of a run (it has no {FILE})")
    cfg.fork, cfg.run_id = None, None
    for override in OverridesParser.create().parse_overrides(overrides):
        key, value = override.key_or_group, override.value()
        before = OmegaConf.select(cfg, key, default=cfg)
        if before is cfg and not override.is_add():
            raise ConfigError(f"{override.input_line}: unknown key; see {run_dir / FILE}")
        if before is not cfg and OmegaConf.is_dict(before) and not isinstance(value, dict):
            raise ConfigError(f"{override.input_line}: a group can't be chosen anew; set values inside it, {key}.NAME=VALUE")
        OmegaConf.update(cfg, key, value, force_add=True)
    return cfg


def config_to_evaluate(run_dir: Path, overrides: list[str], folder: str) -> DictConfig:
    """Return the run's config without what only training needs, for a record in a folder of the run's directory.

    Callbacks are those that `overrides` name.
    """
    cfg = saved_config(run_dir, overrides)
    keys = [override_key(override).split(".") for override in overrides]
    kept = {"progress", *(key[1] for key in keys if key[0] == "callbacks" and len(key) > 1)}
    if cfg.run_dir == str(run_dir):
        cfg.run_dir = str(run_dir / folder / run_id())
    cfg.callbacks = {name: callback for name, callback in (cfg.get("callbacks") or {}).items() if name in kept}
    cfg.logger, cfg.mirror, cfg.init_without = {}, None, None
    cfg.test, cfg.optimized_metric = True, None  # whatever the training did, and chose by
    cfg.trainer.accumulate_grad_batches, cfg.trainer.num_nodes = 1, 1
    if "global_batch_size" in (cfg.datamodule or ()):
        cfg.datamodule.batch_size = cfg.datamodule.batch_size or cfg.datamodule.global_batch_size  # which divides by any number
    return cfg


def load_saved_model(cfg: DictConfig, checkpoint: Path) -> Any:
    """Return the trained model of a run's checkpoint, built of what the run's own config names."""
    from lockstep.models.from_checkpoint import load_model  # torch

    group: Any = OmegaConf.to_container(cfg.model, resolve=True)
    return load_model(checkpoint, group)


def find_checkpoint(run_dir: Path, wanted: str | None) -> Path:
    """Return the path of best, last or a file; by default of the best, or of the last if there is no best."""
    if wanted not in (None, "best", "last"):
        return Path(wanted)
    paths = [run_dir / "checkpoints" / f"{name}.ckpt" for name in ([wanted] if wanted else ["best", "last"])]
    if found := [path for path in paths if path.is_file()]:
        return found[0]
    raise config_error("RUN_DIR", run_dir, f"has no checkpoint {wanted or 'best or last'} in {paths[0].parent}")
