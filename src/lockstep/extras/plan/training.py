"""The training that a plan is for, and the overrides that make a job of a part of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import shown
from lockstep.config.class_checks import is_plain
from lockstep.config.overrides import override_key, quote
from lockstep.config.plan import AUTO, Plan, rate_key, visible_cores, visible_gpus
from lockstep.errors import config_error

DEVICES, _SIZE = "trainer.devices", "datamodule.batch_size"
_DECAY = "callbacks.ema.decay"  # of an average of the weights, per step
_RULES = {"SGD": "linear", "Adam": "adam", "AdamW": "adam"}  # of other optimizers: sqrt


@dataclass
class Training:
    """cfg, plan: of it on one device; constants: the overrides that all jobs have; most: samples that a device can have at once,
    where datamodule.batch_size=auto has been asked for that."""

    cfg: DictConfig
    plan: Plan
    constants: tuple[str, ...]
    most: int | None = None

    @property
    def is_searched(self) -> bool:
        return OmegaConf.select(self.cfg, _SIZE) == AUTO

    def take_size(self, most: int) -> None:
        """Has the jobs that follow divide their batches into parts of at most so many samples, and search no more."""
        self.most = most
        self.constants = (*(one for one in self.constants if override_key(one) != _SIZE), f"{_SIZE}={most}")

    def check(self) -> None:
        """Raises ConfigError for a training whose batch and rate can't be chosen."""
        if self.is_searched and OmegaConf.select(self.cfg, "datamodule.global_batch_size") is None:
            words = "is no batch to begin with; accepted beside it is datamodule.global_batch_size, the batch on one device"
            raise config_error(_SIZE, AUTO, words)
        if is_plain(self.cfg, "datamodule"):
            words = "chooses the batch of all processes; accepted is data of a lockstep.datamodules.DataModule, which divides it"
            raise config_error("sweep", "plan", words)
        if not self.batch or rate_key(self.cfg.model) is None:
            key = "model.optimizer.lr" if self.batch else _SIZE
            raise config_error("sweep", "plan", f"needs {key}, which it is to choose; accepted is a config that has it")
        epochs, steps = self.cfg.trainer.max_epochs, self.cfg.trainer.max_steps
        if steps > 0:
            words = "a batch of another size has other steps; accepted is -1, and an end by trainer.max_epochs"
            raise config_error("trainer.max_steps", steps, words)
        if (epochs or -1) < 1:
            accepted = "a plan compares parts of a training, which must have an end; accepted is an integer of at least 1"
            raise config_error("trainer.max_epochs", shown(epochs), accepted)

    @property
    def batch(self) -> int:
        """The smallest batch: as it is configured on one device."""
        return self.plan.global_batch_size or 0

    @property
    def lr(self) -> float:
        return self.plan.lr or 0.0

    @property
    def devices_here(self) -> int:
        return visible_gpus() if self.plan.accelerator == "gpu" else visible_cores()

    @cached_property
    def rule(self) -> tuple[str, int]:
        """lr_scaling and base_batch_size: the training's own, where it has a rule, or its optimizer's."""
        if self.cfg.lr_scaling != "none":
            return self.cfg.lr_scaling, self.cfg.base_batch_size
        name = str(OmegaConf.select(self.cfg, "model.optimizer._target_")).rpartition(".")[2]
        return _RULES.get(name, "sqrt"), self.batch

    def factor(self, ratio: float) -> float:
        """By how much the rate grows for a batch so many times as large."""
        return ratio if self.rule[0] == "linear" else ratio**0.5

    @property
    def largest_by_the_rule(self) -> float:
        """In multiples of the smallest batch: Adam's betas would be negative beyond it."""
        if self.rule[0] != "adam":
            return math.inf
        betas = OmegaConf.select(self.cfg, "model.optimizer.betas") or (0.9, 0.999)
        return self.rule[1] / self.batch / max(1 - min(betas), 1e-9) + 1e-9

    def timed(self, devices: int, multiple: int, steps: int) -> list[str]:
        """A short run for the throughput."""
        length = [f"trainer.max_steps={steps}", "trainer.max_epochs=-1", "trainer.limit_val_batches=1"]
        batch = [f"{DEVICES}={devices}", f"datamodule.global_batch_size={multiple * self.batch}"]
        if self.most is not None and multiple * self.batch % devices == 0:
            batch.append(f"trainer.accumulate_grad_batches={_parts(multiple * self.batch // devices, self.most)}")
        return [*self.constants, *batch, *length, "trainer.log_every_n_steps=2", "callbacks.noise_scale=null"]

    def shortened(self, multiple: int, rate: float, at: Sequence[int], micro_batch: int | None, checkpoint: Any) -> list[str]:
        """A part of it on one device, from a checkpoint where there is one, which is validated `at` so many samples and ends with
        the last. `rate` is the one that steps are made with; gradients are accumulated over `micro_batch` samples."""
        batch = multiple * self.batch
        parts = _parts(batch, micro_batch or self.most or self.plan.batch_size or batch)
        ends = [f"callbacks.plan.at=[{','.join(map(str, at))}]", "++events.fast_loop=null"]
        fork = [] if checkpoint is None else [f"fork={quote(str(checkpoint))}"]
        sizes = [f"{DEVICES}=1", f"trainer.accumulate_grad_batches={parts}"]
        return [*self.constants, *sizes, *self.with_batch(multiple, rate), *ends, *fork]

    def with_batch(self, multiple: int, rate: float) -> list[str]:
        rule, base = self.rule
        given = rate / self.factor(multiple * self.batch / base)
        decay = OmegaConf.select(self.cfg, _DECAY)
        return [
            f"datamodule.global_batch_size={multiple * self.batch}",
            f"lr_scaling={rule}",
            f"base_batch_size={base}",
            f"model.{rate_key(self.cfg.model)}={given:.6g}",
            *([] if decay is None else [f"{_DECAY}={decay**multiple:.6g}"]),  # of as many samples (Busbridge, arXiv:2307.13813)
        ]


def _parts(samples: int, most: int) -> int:
    """Returns into how many equal parts of at most so many samples they divide."""
    return next(parts for parts in range(1, samples + 1) if samples % parts == 0 and samples // parts <= most)
