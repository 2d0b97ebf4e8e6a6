"""The two trainings: their configs, and one of them by `python train.py`, as any run is started. Imports no torch."""

import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json
from lockstep.config.overrides import quote
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.places import project
from lockstep.runs.validation import check_types

REFERENCE, OTHER = "reference", "other"
_TYPES = {"parity.steps": int, "parity.precision": str | int, "parity.timeout": float}
# Callbacks that end a training or only watch it, and settings of a run that do not change its training.
_CALLBACKS = (
    "LastCheckpoint",
    "BestCheckpoint",
    "ModelCheckpoint",
    "EarlyStopping",
    "Pictures",
    "Pruning",
    "StepTime",
    "KeepCode",
)
_OF_A_RUN = {"fork": None, "mirror": None, "max_restarts": 0, "optimized_metric": None}
_TRAINER = {"max_time": None, "val_check_interval": 1.0, "check_val_every_n_epoch": 1, "num_sanity_val_steps": 0}
_WATCHDOG = "lockstep.callbacks.Watchdog"


@dataclass(frozen=True)
class Sides:
    """The reference, on one process, and the other that is to equal it."""

    reference: DictConfig
    other: DictConfig
    larger_batches: int  # number that the reference takes as one, if loaders alone know their size
    exact: bool  # trainer.exact is given, and the bits are compared

    @classmethod
    def of(cls, cfg: DictConfig) -> "Sides":
        """Make them from the composed run. Raises ConfigError."""
        check_types(cfg, _TYPES)
        if cfg.parity.steps < 1:
            raise config_error("parity.steps", cfg.parity.steps, "trains nothing; use at least 1")
        if OmegaConf.select(cfg, "trainer.strategy.stages") is not None:
            why = "leaves each process the gradients of its own layers, which are not gathered; use another strategy"
            raise config_error("trainer.strategy._target_", cfg.trainer.strategy._target_, why)
        plan, other = Plan.from_config(cfg), _for_training(cfg)
        if plan.world_size == 1:
            raise config_error("trainer.devices", cfg.trainer.devices, "one process is the reference; use 2 or more")
        exact, times = OmegaConf.select(cfg, "trainer.strategy.workers") is not None, 1
        if cfg.parity.precision != "run" and not exact:
            other.trainer.precision = cfg.parity.precision
        reference = deepcopy(other)
        reference.trainer.devices, reference.trainer.num_nodes = list(plan.device_ids[:1]) if plan.device_ids else 1, 1
        if not exact and plan.global_batch_size is None:
            times = plan.data_parallel_size
        elif not exact:  # exact's batches are those of virtual workers
            is_total = "global_batch_size" in reference.datamodule
            key, parts = ("global_batch_size", 1) if is_total else ("batch_size", plan.accumulate_grad_batches)
            reference.datamodule.batch_size = None
            reference.datamodule[key] = (plan.global_batch_size or 0) // parts
        return cls(reference, other, times, exact)

    def changed(self, values: Mapping[str, Any]) -> "Sides":
        """Return copies with values set on both sides."""
        sides = deepcopy(self.reference), deepcopy(self.other)
        for side in sides:
            for key, value in values.items():
                OmegaConf.update(side, key, value, force_add=True)
        return replace(self, reference=sides[0], other=sides[1])

    @property
    def plans(self) -> tuple[Plan, Plan]:
        return Plan.from_config(self.reference), Plan.from_config(self.other)

    @property
    def bits(self) -> int:
        precision = str(self.other.trainer.precision)
        return 64 if "64" in precision else 16 if "16" in precision else 32

    def config(self, name: str, folder: Path) -> DictConfig:
        """Return a side's config with the recorder; an epoch that would last longer ends with the steps, for its validation."""
        cfg = deepcopy(self.reference if name == REFERENCE else self.other)
        steps, limit = cfg.parity.steps, cfg.trainer.limit_train_batches
        batches = steps * cfg.trainer.accumulate_grad_batches
        cfg.trainer.limit_train_batches = min(batches, limit) if isinstance(limit, int) and limit > 0 else batches
        # enough epochs, and an end: some schedules need one
        cfg.trainer.max_steps, cfg.trainer.max_epochs = steps, max(steps, cfg.trainer.max_epochs or 0)
        recorder: dict[str, Any] = {"_target_": f"{__package__}.recorder.Recorder", "file": str(folder / "record.pt")}
        recorder["larger_batches"] = self.larger_batches if name == REFERENCE else 1
        OmegaConf.update(cfg, "callbacks.parity", recorder, force_add=True)
        return cfg


def _for_training(cfg: DictConfig) -> DictConfig:
    """Return the config, open to any key, without what a run leaves behind and what ends it early."""
    plain: Any = OmegaConf.create(OmegaConf.to_container(cfg))
    for group in ("guards", "callbacks"):
        kinds = {name: str(node.get("_target_")).rpartition(".")[2] for name, node in (plain.get(group) or {}).items() if node}
        plain[group] = {name: plain[group][name] for name, kind in kinds.items() if kind not in _CALLBACKS}
    seconds = cfg.parity.timeout
    plain.guards.watchdog = {"_target_": _WATCHDOG, "seconds": seconds, "seconds_to_first_batch": 3 * seconds}
    nowhere = {"_target_": "lightning.pytorch.loggers.logger.DummyLogger"}  # for a model that uses its loggers
    plain.logger = {name: nowhere for name, entry in (plain.get("logger") or {}).items() if entry is not None}
    plain.trainer.update(_TRAINER | {"enable_progress_bar": False})
    plain.update({key: value for key, value in _OF_A_RUN.items() if key in plain})
    return plain


class SideFailed(RuntimeError):
    """A side has raised instead of training: its name, the reason in one line, and its whole output."""

    def __init__(self, side: str, reason: str, traceback: str) -> None:
        super().__init__(f"{side}: {reason}")
        self.traceback = traceback


def train(cfg: DictConfig, folder: Path) -> None:
    """Train with this config, in a folder of the side's name. Raises ConfigError for what is refused, SideFailed if it fails."""
    content: Any = OmegaConf.to_container(cfg)
    content = {"defaults": [{"hydra": "default"}, "_self_"], **content, "run_dir": "${hydra:runtime.output_dir}"}
    OmegaConf.save(OmegaConf.create(content), folder / "side.yaml")
    run = folder / "run"
    flags = ["--config-dir", str(folder), "--config-name", "side", f"hydra.run.dir={quote(str(run))}"]
    command = [sys.executable, str(project() / "train.py"), *flags]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    done = subprocess.run(command, check=False, **streams)
    if done.returncode == ExitCode.REFUSED:
        raise ConfigError(done.stdout.strip().splitlines()[-1])
    if done.returncode:
        reason = (read_json(run / "status.json") or {}).get("reason") or f"train.py has ended with code {done.returncode}"
        logs = [file.read_text(errors="replace") for file in sorted(run.glob("train.rank*.log"))]  # the stacks, if it hung
        raise SideFailed(folder.name, reason, "\n".join([done.stdout, *logs]))
