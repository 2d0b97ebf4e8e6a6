"""The two trainings that are compared: their configs, and what is done to both. Imports no torch."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from lockstep.config.checks import check_rules
from lockstep.config.plan import Plan
from lockstep.config.rules import Rule, integer, number, one_of
from lockstep.errors import config_error
from lockstep.trainer.checks import PRECISIONS

Role = Literal["lead", "follow", "finish", "alone"] | str  # or the path of a Recorder
AT_THE_END = ("weights", "buffers at the end")  # quantities of trainings that run freely


def is_reference(value: object) -> bool:
    return isinstance(value, str) and (value in ("one", "ddp") or all("=" in override for override in value.split()))


PARITY_RULES = {
    "parity.steps": integer(1),
    "parity.precision": one_of("run", *PRECISIONS),
    "parity.timeout": number(1),
    "parity.tolerance": number(0).or_null(),
    "parity.against": Rule("accepted is one, ddp, or overrides as 'key=value key=value'", is_reference),
}


@dataclass(frozen=True)
class Training:
    """A training to do: the config and the plan of its run in plain containers, or the config as YAML, and what it is for (see
    trainings.py). `folder`: of the records; its subfolders are of the trainings that follow another one."""

    config: Any
    plan: dict[str, Any]
    role: Role
    folder: str
    subfolder: str


@dataclass(frozen=True)
class Difference:
    """How far one tensor of a quantity is from its reference in one step, counted from 0 (or in the validation after it),
    relative to its own size.

    `bits`: what holds the tensor's numbers, which may be coarser than what they are computed in. `size`: its largest |a| or |b|.
    """

    step: int
    quantity: str
    name: str
    value: float
    bits: int = 64
    size: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Findings:
    """What a training has come to: its differences from the other, and facts about the model."""

    differences: list[Difference]
    facts: dict[str, Any]

    @classmethod
    def from_plain(cls, content: dict[str, Any]) -> "Findings":
        return cls([Difference(**difference) for difference in content["differences"]], content["facts"])


@dataclass(frozen=True)
class Sides:
    """The reference, and the other that is to equal it, for so many optimizer steps.

    Their configs are a run's, and what is done to the training beyond it: `interventions`, see interventions.py.
    """

    reference: DictConfig
    other: DictConfig
    steps: int

    @classmethod
    def of(cls, cfg: DictConfig, compose: Callable[[list[str]], DictConfig]) -> "Sides":
        """From the composed run; `compose` composes it again with more overrides."""
        check_rules(cfg, PARITY_RULES)
        plan, against = Plan.from_config(cfg), cfg.parity.against
        made = {"one": as_one_process, "ddp": as_plain_ddp}.get(against)
        if made is not None and plan.world_size == 1:
            raise config_error("trainer.devices", cfg.trainer.devices, "one process is the reference; accepted is 2 or more")
        reference = made(cfg) if made is not None else compose(against.split())
        reference_plan = Plan.from_config(reference)
        if plan.global_batch_size != reference_plan.global_batch_size and not _has_batches_of_workers(cfg):
            sizes = f"{plan.global_batch_size} and {reference_plan.global_batch_size}"
            raise config_error("parity.against", against, f"the sides take {sizes} samples a step; set global_batch_size")
        # where precisions are what is compared, each side keeps its own
        own = cfg.parity.precision == "run" or any(override.startswith("trainer.precision=") for override in against.split())
        precision = None if own else cfg.parity.precision
        return cls(*(_to_compare(side, precision) for side in (reference, cfg)), steps=cfg.parity.steps)

    def changed(self, overrides: dict[str, Any], steps: int) -> "Sides":
        """Returns copies with values set on both sides, for another number of steps."""
        sides = deepcopy(self.reference), deepcopy(self.other)
        for side in sides:
            for key, value in overrides.items():
                OmegaConf.update(side, key, value, force_add=True)
        return Sides(*sides, steps=steps)

    @property
    def bits(self) -> int:
        """Returns those of the coarser of both precisions: 64, 32 or 16."""
        precisions = [str(side.trainer.precision) for side in (self.reference, self.other)]
        return min(64 if "64" in precision else 16 if "16" in precision else 32 for precision in precisions)

    @property
    def is_same_precision(self) -> bool:
        return self.reference.trainer.precision == self.other.trainer.precision

    @property
    def tolerance(self) -> float | None:
        """Returns the largest difference that is equal; None where a control shows it."""
        return OmegaConf.select(self.other, "parity.tolerance")

    @property
    def has_micro_batches(self) -> bool:
        """Do both divide a batch among as many virtual workers, whose epoch's means are in the same order for a Task alone?"""
        workers = {OmegaConf.select(side, "trainer.strategy.workers") for side in (self.reference, self.other)}
        return len(workers) == 1 and None not in workers

    @property
    def processes(self) -> int:
        """Returns how many it takes: the reference's, the other's and those of the control, a copy of the reference."""
        return 2 * Plan.from_config(self.reference).world_size + Plan.from_config(self.other).world_size


def _has_batches_of_workers(cfg: DictConfig) -> bool:
    """Do loaders of plain Lightning code make the batches of virtual workers?"""
    has_workers = OmegaConf.select(cfg, "trainer.strategy.workers") is not None
    return has_workers and OmegaConf.select(cfg, "datamodule.global_batch_size") is None


def as_one_process(cfg: DictConfig, parts: int | None = None) -> DictConfig:
    """The same training on one process: the same global batches, accumulated in so many parts, or in as many as they are."""
    plan, one = Plan.from_config(cfg), deepcopy(cfg)
    parts = parts or plan.accumulate_grad_batches
    one.trainer.accumulate_grad_batches = parts
    one.trainer.devices, one.trainer.num_nodes = list(plan.device_ids[:1]) if plan.device_ids else 1, 1
    if _has_batches_of_workers(cfg):
        pass  # they are the same on any number of processes
    elif plan.global_batch_size is None:
        OmegaConf.update(one, "interventions", {"larger_batches": plan.data_parallel_size}, force_add=True)
    elif "global_batch_size" in one.datamodule:
        one.datamodule.global_batch_size = plan.global_batch_size
    else:
        one.datamodule.batch_size = plan.global_batch_size // parts
    return one


def as_plain_ddp(cfg: DictConfig) -> DictConfig:
    """The same training on as many processes, under DDP with torch's own settings."""
    plain = deepcopy(cfg)
    kept = {name: cfg.trainer.strategy[name] for name in ("process_group_backend", "timeout")}
    plain.trainer.strategy = OmegaConf.create({"_target_": "lockstep.trainer.strategies.DDP"} | kept)
    return plain


def for_steps(cfg: DictConfig, steps: int, folder: Path) -> DictConfig:
    """A side's config for so many optimizer steps; an epoch that would last longer ends with them, for its validation."""
    cfg, batches = deepcopy(cfg), steps * cfg.trainer.accumulate_grad_batches
    limit = cfg.trainer.limit_train_batches
    cfg.trainer.max_steps = steps
    cfg.trainer.limit_train_batches = min(batches, limit) if isinstance(limit, int) and limit > 0 else batches
    cfg.trainer.max_epochs = max(steps, cfg.trainer.max_epochs or 0)  # enough, and an end: some schedules need one
    cfg.run_dir = str(folder)
    OmegaConf.resolve(cfg)
    return cfg


def _to_compare(cfg: DictConfig, precision: Any) -> DictConfig:
    """Open to any value, without what a run leaves behind and what ends it early."""
    plain: Any = OmegaConf.create(OmegaConf.to_container(cfg))
    if precision is not None:
        plain.trainer.precision = precision
    plain.fork, plain.interventions = None, plain.get("interventions") or {}
    # a model may use its loggers: here they write nothing
    nowhere = {"_target_": "lightning.pytorch.loggers.logger.DummyLogger"}
    plain.logger = {name: nowhere for name, entry in (plain.get("logger") or {}).items() if entry is not None}
    fixed = {"max_time": None, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
    plain.trainer.update(fixed | {"num_sanity_val_steps": 0, "enable_progress_bar": False})
    return plain
