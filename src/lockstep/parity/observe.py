"""What the ranks do: one training of one side, recorded and compared."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ProgressBar
from omegaconf import DictConfig, OmegaConf

from lockstep.build import build
from lockstep.callbacks import LearningRate, NonFinite, Pictures, Preemption, Throughput, Watchdog
from lockstep.config.plan import Plan
from lockstep.parity.exchange import Exchange
from lockstep.parity.interventions import applied
from lockstep.parity.roles import Finisher, Follower, Leader
from lockstep.parity.sides import Findings, Role
from lockstep.trainer.batchnorm import is_batchnorm
from lockstep.trainer.step_parts import StepParts

Report = Callable[[str], None]
# What leaves something, ends a training, or only watches it.
_UNWANTED = (
    *(Checkpoint, ProgressBar, EarlyStopping, Preemption, NonFinite, Watchdog, LearningRateMonitor, DeviceStatsMonitor),
    *(LearningRate, Throughput, Pictures, StepParts),
)


def train(cfg: DictConfig, role: Role, where: tuple[Any, ...], report: Report) -> Findings:
    """One training of one side, in every rank of it. `lead` and `follow` run at the same time; `finish` trains freely,
    afterwards, and compares the weights it ends with."""
    built: Any = build(cfg, Plan.of(cfg))
    datamodule, model, trainer = built
    roles: Any = {"lead": Leader, "follow": Follower, "finish": Finisher}
    recorder = roles[role](Exchange(*where), cfg.interventions, report)
    trainer.callbacks = [*(callback for callback in trainer.callbacks if not isinstance(callback, _UNWANTED)), recorder]
    with applied(cfg.interventions, model):
        trainer.fit(model, datamodule)
        if role != "finish" and OmegaConf.select(cfg, "test"):
            trainer.test(model, datamodule, verbose=False)
    recorder.closes()
    facts = {
        "batchnorm": _has_batchnorm(model),
        "sgd": all(isinstance(optimizer, torch.optim.SGD) for optimizer in trainer.optimizers),
        "untrained": [name for name, _ in model.named_parameters() if name not in recorder.facts["trained"]],
    }
    return Findings(recorder.differences.found, recorder.facts | facts)


def builds_batchnorm(cfg: DictConfig, _: Report) -> bool:
    """Has the configured model a BatchNorm: then a larger batch is not what an accumulated one is."""
    return _has_batchnorm(build(cfg, Plan.of(cfg))[1])


def _has_batchnorm(model: torch.nn.Module) -> bool:
    return any(is_batchnorm(module) for module in model.modules())
