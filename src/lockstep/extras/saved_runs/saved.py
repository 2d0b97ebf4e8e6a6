"""A finished run, opened again: its config with changes, its checkpoints."""

from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lockstep.config.checkpoint_file import refuse_url
from lockstep.config.overrides import override_key
from lockstep.config.targets import targets_in
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import run_id


def saved_config(run_dir: Path, overrides: list[str]) -> DictConfig:
    """The config a run was composed of, with values overridden in Hydra's grammar; groups can't be chosen anew."""
    path = run_dir / ".hydra" / "config.yaml"
    cfg = _read(path, run_dir)
    cfg.run_dir, cfg.name = str(run_dir), run_dir.parent.name  # were asked of Hydra, which is not running now
    cfg.resume = cfg.begin_from = None
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        if override.is_delete() or override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: accepted is key=value")
        if not override.is_add() and OmegaConf.select(cfg, key, default=cfg) is cfg:
            raise ConfigError(f"{override.input_line}: unknown key; see {path}")
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
    """Return the trained model of a run's checkpoint, built of whatever the run's own config names."""
    from lockstep.models.from_checkpoint import load_model  # torch

    return load_model(checkpoint, allow={str(target) for _, target in targets_in(OmegaConf.to_container(cfg.model))})


def _read(path: Path, run_dir: Path) -> Any:
    """The file as Hydra has written it: the root keys come last, so that a file cut short lacks run_dir."""
    refuse_url("RUN_DIR", run_dir)
    if not path.is_file():
        raise config_error("RUN_DIR", run_dir, f"has no {path.relative_to(run_dir)}; accepted is the directory of a run")
    try:
        cfg = OmegaConf.load(path)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
    else:
        if OmegaConf.is_dict(cfg) and "run_dir" in cfg:
            return cfg
        reason = "it is cut short"
    raise config_error(
        "RUN_DIR", run_dir, f"{path.relative_to(run_dir)} is damaged ({reason}); accepted is what Hydra had written"
    )


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
