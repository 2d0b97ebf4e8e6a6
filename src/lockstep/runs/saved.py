"""The folder `.hydra/` of a run's directory, in Hydra's format; a run is resumed with its config.yaml."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json, replace_text
from lockstep.config.overrides import nodes, override_key
from lockstep.config.plan import BATCH, GLOBAL_BATCH

FOLDER = ".hydra"
FILE = f"{FOLDER}/config.yaml"
RUN_ID = "run_id"
RUN_DIR = "${hydra:runtime.output_dir}"  # directory of the run that Hydra composes


def write_config(run_dir: Path, cfg: DictConfig, hydra: DictConfig, run_id: str, global_batch_size: int | None) -> None:
    """Write the config of a run that starts or is resumed, with its global batch size, so that another world size has the same.

    A resumed run, which has this id already, keeps its groups' options and the overrides of its earlier starts. Each file is
    replaced atomically, and config.yaml, which makes the directory a run's, is written last.
    """
    folder, overrides = run_dir / FOLDER, list(hydra.overrides.task)
    folder.mkdir(parents=True, exist_ok=True)
    if read_run_id(run_dir) == run_id:
        given = {override_key(item) for item in overrides}
        overrides = [*(item for item in read_overrides(run_dir) if override_key(item) not in given), *overrides]
    else:
        settings = {"hydra": OmegaConf.to_container(hydra, enum_to_str=True)}
        replace_text(folder / "hydra.yaml", yaml.dump(settings, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    replace_text(folder / "overrides.yaml", yaml.safe_dump(overrides))
    job: Any = OmegaConf.to_container(OmegaConf.masked_copy(hydra.job, ["chdir", "env_set"]))
    write_for_hydra(folder, _to_save(cfg, run_id, global_batch_size), job=job)


def write_for_hydra(folder: Path, cfg: DictConfig, groups: Sequence[str] = (), job: Mapping[str, Any] | None = None) -> None:
    """Write a config, and saved.yaml, from which Hydra composes it with the options that a command chooses for `groups`, and with
    Hydra's settings for the `job`: its folder and environment variables."""
    defaults = [{"hydra": "default"}, "config", "_self_", *({group: None} for group in groups)]
    replace_text(folder / "saved.yaml", yaml.safe_dump({"defaults": defaults, "hydra": {"job": dict(job or {})}}))
    replace_text(folder / "config.yaml", OmegaConf.to_yaml(cfg))


def read_config(run_dir: Path) -> DictConfig | None:
    """Return the config of the directory's run, or None."""
    if not (run_dir / FILE).is_file():
        return None
    cfg: Any = OmegaConf.load(run_dir / FILE)
    cfg.run_dir = str(run_dir)
    return cfg


def read_run_id(run_dir: Path) -> str | None:
    """Return the run id that the checkpoints of the directory's run carry, or None."""
    return (read_yaml(run_dir / FILE) or {}).get(RUN_ID)


def read_overrides(run_dir: Path) -> list[str]:
    """Return the overrides of the run's first start, then those of its resumptions."""
    return read_yaml(run_dir / FOLDER / "overrides.yaml") or []


def read_choices(run_dir: Path) -> dict[str, Any]:
    """Return the run's option of each config group."""
    settings = read_yaml(run_dir / FOLDER / "hydra.yaml")
    return settings["hydra"]["runtime"]["choices"] if settings else {}


def read_yaml(path: Path) -> Any:
    """Return the content of a file, or None. libyaml reads it many times as fast as PyYAML, where it is there."""
    return yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if path.is_file() else None


def _to_save(cfg: DictConfig, run_id: str, global_batch_size: int | None) -> DictConfig:
    saved: Any = cfg.copy()
    OmegaConf.set_struct(saved, False)
    fix_times(saved)
    saved.run_dir = RUN_DIR
    if global_batch_size is not None and OmegaConf.select(cfg, GLOBAL_BATCH, default=cfg) is not cfg:
        OmegaConf.update(saved, GLOBAL_BATCH, global_batch_size)
        OmegaConf.update(saved, BATCH, None)
    saved[RUN_ID] = run_id
    return saved


def fix_times(cfg: DictConfig) -> None:
    """Replace ${now:} and ${hydra:} by their values, which would be other ones when a copy of the config is resolved."""
    for key, value in [*nodes(OmegaConf.to_container(cfg))]:
        if key != "run_dir" and isinstance(value, str) and ("${now:" in value or "${hydra:" in value):
            OmegaConf.update(cfg, key, OmegaConf.select(cfg, key))


def is_queued(run_dir: Path) -> bool:
    """Return whether the directory's run has not started: it has no status, or a sweep's status "queued"."""
    status = run_dir / "status.json"
    return (run_dir / FILE).is_file() and (not status.exists() or (read_json(status) or {}).get("status") == "queued")
